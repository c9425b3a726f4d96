//! Finds programs in directories, like the programs that we replace.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use libnvc::{STANDARD_PATH, pattern};

/// Returns the directories of PATH, then the missing standard ones.
pub fn directories(path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = match path {
        Some(path) if !path.is_empty() => path
            .as_bytes()
            .split(|byte| *byte == b':')
            .map(|entry| OsStr::from_bytes(entry).into())
            .collect(),
        _ => Vec::new(),
    };
    for usual in STANDARD_PATH {
        if !all.iter().any(|entry| entry.as_os_str() == usual) {
            all.push(usual.into());
        }
    }
    all
}

/// Joins directories for PATH.
pub fn joined(directories: &[PathBuf]) -> OsString {
    let parts: Vec<&OsStr> = directories.iter().map(|entry| entry.as_os_str()).collect();
    parts.join(OsStr::new(":"))
}

/// Returns true for an executable file.
pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

/// Returns the first program of this name.
pub fn find(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories
        .iter()
        .map(|directory| directory.join(name))
        .find(|path| is_executable(path))
}

/// Returns the files that a path names, which may have a shell pattern as its last component, sorted: the order in which
/// engines read them. A plain path need not exist.
pub fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str());
    let (Some(name), Some(directory)) = (name, pattern.parent()) else {
        return Vec::new();
    };
    if !name.contains(['*', '?', '[']) {
        return vec![pattern.into()];
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| matches(name, &entry.file_name().to_string_lossy()));
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns true if a name matches a shell pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    let letters = |text: &str| text.chars().collect::<Vec<char>>();
    pattern::matches(&letters(pattern), &letters(name))
}
