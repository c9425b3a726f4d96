//! Changes the device rules of real cgroups and tests them with a process inside.
#![allow(clippy::unwrap_used)]

mod group;
mod probe;
mod unified;
mod v1;

use std::process::ExitCode;

use nvc_testkit::harness;

fn main() -> ExitCode {
    if probe::is_wanted() {
        return probe::run();
    }
    group::record_warnings();
    let mut tests = unified::tests();
    tests.extend(v1::tests());
    harness::main(tests)
}
