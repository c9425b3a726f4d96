//! Compares what the documents show with what the programs do: README's output, the commands of docs/recipes.md, and
//! the options on manual pages. Also checks that tables are whole and that links lead somewhere.
//!
//! `UPDATE=1` rewrites README's output.
#![allow(clippy::unwrap_used)]

mod manuals;
mod markdown;
mod page;
mod readme;
mod recipes;
mod world;

use std::process::ExitCode;

use nvc_testkit::harness;

fn main() -> ExitCode {
    // The pages show a package in Debian's directories, with its services.
    harness::on_debian();
    let mut tests = readme::tests();
    tests.extend(recipes::tests());
    tests.extend(manuals::tests());
    tests.extend(markdown::tests());
    harness::main(tests)
}
