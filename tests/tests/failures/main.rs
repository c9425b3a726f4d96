//! Other people's failures, end to end: drivers that change under our feet, damaged files, machines that run out of
//! everything, containers that end. Either it works or it explains itself, and then nothing is left.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;

use nvc_testkit::harness;

mod container_ends;
mod damage;
mod paused;
mod scarcity;
mod upgrade;

fn main() -> ExitCode {
    let mut tests = upgrade::tests();
    tests.extend(damage::tests());
    tests.extend(container_ends::tests());
    tests.extend(scarcity::tests());
    harness::main(tests)
}
