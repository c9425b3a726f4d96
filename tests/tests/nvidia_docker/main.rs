//! Tests nvidia-docker and its plugin on a machine with docker 20.10 and the simulated driver.
#![allow(clippy::unwrap_used)]

mod browser;
mod containers;
mod robustness;
mod world;

use std::process::ExitCode;

use nvc_testkit::harness;

fn main() -> ExitCode {
    let mut tests = containers::tests();
    tests.extend(robustness::tests());
    tests.extend(browser::tests());
    harness::main(tests)
}
