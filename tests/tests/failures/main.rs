//! Tests failures of other components end to end: drivers that change during a run, damaged files, machines that run
//! out of resources, containers that end. Each run succeeds or reports the cause, and leaves nothing behind.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;

use nvc_testkit::harness;

mod container_ends;
mod damage;
mod paused;
mod scarcity;
mod upgrade;

fn main() -> ExitCode {
    // They exchange libraries of both word sizes, by their names in Debian's directories.
    harness::on_debian();
    let mut tests = upgrade::tests();
    tests.extend(damage::tests());
    tests.extend(container_ends::tests());
    tests.extend(scarcity::tests());
    harness::main(tests)
}
