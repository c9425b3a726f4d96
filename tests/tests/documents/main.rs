//! Compares what the documents show with what the programs do: README's output, the commands of docs/recipes.md, and
//! the options on manual pages.
//!
//! `UPDATE=1` rewrites README's output.
#![allow(clippy::unwrap_used)]

mod manuals;
mod page;
mod readme;
mod recipes;
mod world;

use std::process::ExitCode;

use nvc_testkit::harness;

fn main() -> ExitCode {
    let mut tests = readme::tests();
    tests.extend(recipes::tests());
    tests.extend(manuals::tests());
    harness::main(tests)
}
