//! Passes facts about the build to a package's programs, for `--version`.
//!
//! Needs neither git nor a network: the revision comes from `NVC_BUILD_REVISION` or is read from `.git`. The date is
//! `SOURCE_DATE_EPOCH` if set, so that builds are reproducible.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::variable;

/// A fact about the build.
#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// `NVC_BUILD_DATE`: the date in UTC, as ISO 8601 to the minute.
    Date,
    /// `NVC_BUILD_REVISION`: the checked-out commit.
    Revision,
    /// `NVC_BUILD_COMPILER`: the compiler and its version.
    Compiler,
    /// `NVC_BUILD_FLAGS`: the profile and the compiler's flags.
    Flags,
}

/// Sets a variable for each fact while the package is compiled, to `unknown` if it cannot be found out.
pub fn set(facts: &[Fact]) {
    println!("cargo::rerun-if-changed=build.rs");
    for fact in facts {
        let (name, value) = match fact {
            Fact::Date => ("DATE", date()),
            Fact::Revision => ("REVISION", revision()),
            Fact::Compiler => ("COMPILER", compiler()),
            Fact::Flags => ("FLAGS", Some(flags())),
        };
        let value = value.unwrap_or_else(|| "unknown".into());
        println!("cargo::rustc-env=NVC_BUILD_{name}={}", value.trim());
    }
}

/// Returns a variable that the person who builds may set; a change triggers a rebuild.
fn setting(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    variable(name)
}

fn date() -> Option<String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M+00:00"]);
    if let Some(seconds) = setting("SOURCE_DATE_EPOCH") {
        date.arg("-d").arg(format!("@{seconds}"));
    }
    output(&mut date)
}

fn compiler() -> Option<String> {
    output(Command::new(variable("RUSTC")?).arg("--version"))
}

/// Returns what a program prints, unless it fails.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok();
    text.filter(|_| output.status.success())
}

/// Returns the checked-out commit.
fn revision() -> Option<String> {
    if let Some(revision) = setting("NVC_BUILD_REVISION") {
        return Some(revision);
    }
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let git = package
        .ancestors()
        .map(|dir| dir.join(".git"))
        .find(|git| git.exists())?;
    // In a worktree, .git is a file that contains the directory's path.
    let git = match fs::read_to_string(&git) {
        Ok(text) => git.parent()?.join(text.strip_prefix("gitdir: ")?.trim()),
        Err(_) => git,
    };
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else {
        return Some(head);
    };
    // A worktree's branches are in the main repository.
    let common = match fs::read_to_string(git.join("commondir")) {
        Ok(path) => git.join(path.trim()),
        Err(_) => git,
    };
    read(&common.join(name)).or_else(|| {
        let packed = read(&common.join("packed-refs"))?;
        let line = packed
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")))?;
        Some(line.split(' ').next()?.to_owned())
    })
}

/// Reads a file of the repository; a change triggers a rebuild.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}

fn flags() -> String {
    let given = variable("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let words = [
        format!("profile={}", variable("PROFILE").unwrap_or_default()),
        format!("opt-level={}", variable("OPT_LEVEL").unwrap_or_default()),
        // Source paths are private, and would differ between builders.
        given
            .split('\x1f')
            .filter(|flag| !flag.starts_with("--remap-path-prefix"))
            .collect::<Vec<_>>()
            .join(" "),
    ];
    words.join(" ")
}
