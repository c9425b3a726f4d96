//! Runs our hook and our runtime under the engines that people run, with the simulated driver.
//!
//! Every test looks from inside a container: which nodes open, which GPUs nvidia-smi sees, whether libraries are in the
//! loader's cache. An engine that does not start is a failure.

mod containerd;
mod docker;
mod isolation;
mod podman;
mod runtimes;
mod world;

use std::process::ExitCode;

use nvc_testkit::harness::{self, Need, test};

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for runtime in ["runc", "crun"] {
        let needs = [Need::Root, Need::CgroupV1, Need::Command(runtime)];
        for (name, run) in runtimes::TESTS.iter().chain(isolation::TESTS) {
            tests.push(test(format!("{runtime}_{name}"), &needs, move || {
                run(runtime);
            }));
        }
    }
    for (needs, all) in [
        (Need::Command("dockerd"), docker::TESTS),
        (Need::Command("podman"), podman::TESTS),
        (Need::Command("containerd"), containerd::TESTS),
    ] {
        for (name, run) in all {
            let needs = [Need::Root, Need::CgroupV1, Need::Command("runc"), needs];
            tests.push(test(*name, &needs, *run));
        }
    }
    harness::main(tests)
}
