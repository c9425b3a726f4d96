//! Runs our hook and our runtime under common engines, with the simulated driver.
//!
//! Every test checks from inside a container which nodes can be opened, which GPUs nvidia-smi lists, and whether the
//! loader's cache has the libraries. An engine that does not start is a failure.

mod alternatives;
mod annotations;
mod containerd;
mod control_nodes;
mod daemon;
mod docker;
mod handover;
mod hostile;
mod isolation;
mod jetsons;
mod kit;
mod ldconfig;
mod machines;
mod nvml_user;
mod plain_cdi;
mod platforms;
mod podman;
mod replaced;
mod runtimes;
mod sources;
mod volumes;

use std::process::ExitCode;

use nvc_testkit::harness::{self, Need, test};

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for runtime in ["runc", "crun"] {
        let needs = [Need::Root, Need::CgroupV1, Need::Command(runtime)];
        let all = [
            runtimes::TESTS,
            sources::TESTS,
            jetsons::TESTS,
            platforms::TESTS,
            isolation::TESTS,
            machines::TESTS,
            replaced::TESTS,
            handover::TESTS,
            nvml_user::TESTS,
            alternatives::TESTS,
            control_nodes::TESTS,
            ldconfig::TESTS,
            volumes::TESTS,
            kit::TESTS,
            plain_cdi::TESTS,
        ];
        for (name, run) in all.into_iter().flatten() {
            tests.push(test(format!("{runtime}_{name}"), &needs, move || {
                run(runtime);
            }));
        }
    }
    for (needs, all) in [
        // Since Debian 13, client and daemon are two packages.
        (["dockerd", "docker"], docker::TESTS),
        (["podman", "runc"], podman::TESTS),
        (["podman", "runc"], annotations::TESTS),
        (["containerd", "runc"], containerd::TESTS),
        (["cc", "runc"], hostile::TESTS),
    ] {
        for (name, run) in all {
            let [first, second] = needs.map(Need::Command);
            let needs = [
                Need::Root,
                Need::CgroupV1,
                Need::Command("runc"),
                first,
                second,
            ];
            tests.push(test(*name, &needs, *run));
        }
    }
    harness::main(tests)
}
