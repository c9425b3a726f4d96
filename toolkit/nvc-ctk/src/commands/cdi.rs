//! Generates, lists, checks and transforms CDI specifications.

pub(super) mod generate;
pub(super) mod list;
mod machine;
pub(super) mod transform;
pub(super) mod verify;

use std::path::PathBuf;

use nvc_cdi::STANDARD_DIRECTORIES;

use crate::line::CommandLine;

/// The way out if there is no specification.
const MAKE_ONE: &str =
    "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml writes one of this machine's GPUs";

/// Returns directories as a text.
fn named(directories: &[PathBuf]) -> String {
    let names: Vec<_> = directories
        .iter()
        .map(|one| one.display().to_string())
        .collect();
    names.join(" or ")
}

/// Returns the directories that a line names, or the engines' defaults.
fn spec_directories(line: &CommandLine) -> Vec<PathBuf> {
    match line.given("spec-dir") {
        Some(_) => line.list("spec-dir").iter().map(PathBuf::from).collect(),
        None => STANDARD_DIRECTORIES.iter().map(PathBuf::from).collect(),
    }
}
