//! Runs every mode on machines as users have them, and compares who gets what with tables that people can read.
//!
//! Each file of shared/nvc-testkit/machines is a machine; `tables/NAME` says what each mode gives there, or its error.
//! `UPDATE=1` rewrites the tables, to be reviewed. A section marked `(waits for POINT)` says what is right although it is
//! not so yet: it is neither compared nor rewritten. Whoever makes it right removes the mark.
#![allow(clippy::unwrap_used)]

mod modes;
mod printed;
mod table;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::profile::Profile;

fn main() -> ExitCode {
    let entries = fs::read_dir(machines()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let tests = names
        .into_iter()
        .map(|name| test(name.replace('-', "_"), &[Root], move || check(&name)));
    harness::main(tests.collect::<Vec<Test>>())
}

fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/nvc-testkit/machines")
}

fn check(name: &str) {
    let text = fs::read_to_string(machines().join(name)).unwrap();
    let profile = Profile::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let world = world::World::new(&profile);
    table::compare(name, &modes::all(&world));
}
