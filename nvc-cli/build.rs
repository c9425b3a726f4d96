//! Passes build information to the program for `--version` (date, revision, compiler and flags), and sets linker
//! options.
//!
//! Needs neither git nor a network: the revision comes from `NVC_BUILD_REVISION` or is read from `.git`. The date is
//! `SOURCE_DATE_EPOCH` if set, so that builds are reproducible.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    for name in ["SOURCE_DATE_EPOCH", "NVC_BUILD_REVISION"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    set("DATE", &date(seconds()));
    set("REVISION", &revision().unwrap_or_else(|| "unknown".into()));
    set("COMPILER", &compiler().unwrap_or_else(|| "unknown".into()));
    set("FLAGS", &flags());
    link();
}

/// Links the programs that start with each container statically with the compiler's run time: a tenth of a millisecond
/// less in each process. The C library shares its program's.
fn link() {
    let is = |name: &str, value: &str| env(name).is_some_and(|found| found == value);
    let is_program = ["nvc-cli", "nvc-hook", "nvc-runtime", "nvc-docker"]
        .iter()
        .any(|name| is("CARGO_PKG_NAME", name));
    if is_program && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env=NVC_BUILD_{name}={}", value.trim());
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn seconds() -> u64 {
    let given = env("SOURCE_DATE_EPOCH").and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH);
    given.unwrap_or_else(|| now().map_or(0, |now| now.as_secs()))
}

/// Formats a date as ISO 8601 to the minute, in UTC.
fn date(seconds: u64) -> String {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut days) = (1970, seconds / 86400);
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!(
        "{year}-{month:02}-{:02}T{hour:02}:{minute:02}+00:00",
        days + 1
    )
}

/// Returns the checked-out commit.
fn revision() -> Option<String> {
    if let Some(revision) = env("NVC_BUILD_REVISION") {
        return Some(revision);
    }
    let top = PathBuf::from(env("CARGO_MANIFEST_DIR")?);
    let git = top
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

fn compiler() -> Option<String> {
    let output = Command::new(env("RUSTC")?).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()
}

fn flags() -> String {
    let given = env("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let words = [
        format!("profile={}", env("PROFILE").unwrap_or_default()),
        format!("opt-level={}", env("OPT_LEVEL").unwrap_or_default()),
        // Source paths are private, and would differ between builders.
        given
            .split('\x1f')
            .filter(|flag| !flag.starts_with("--remap-path-prefix"))
            .collect::<Vec<_>>()
            .join(" "),
    ];
    words.join(" ")
}
