//! Tests the driver for Kubernetes as a kubelet sees it: Python's gRPC with the protocols that Kubernetes publishes.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;

use nvc_testkit::harness::{self, Need, kubelet_protocols};

mod protocols;

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Need::Kubelet];
        each_number_is_the_published_one,
    ])
}

fn each_number_is_the_published_one() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nvc-node/proto");
    let differences = protocols::differences(&ours, &kubelet_protocols());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
