//! Finds programs in directories, as the programs that we replace do.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where programs are even if PATH does not say so.
pub const DIRECTORIES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// The directories of PATH, then the usual ones that are not among them.
pub fn directories(path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = match path {
        Some(path) if !path.is_empty() => path
            .as_bytes()
            .split(|byte| *byte == b':')
            .map(|entry| OsStr::from_bytes(entry).into())
            .collect(),
        _ => Vec::new(),
    };
    for usual in DIRECTORIES {
        if !all.iter().any(|entry| entry.as_os_str() == usual) {
            all.push(usual.into());
        }
    }
    all
}

/// Directories as the value of PATH.
pub fn joined(directories: &[PathBuf]) -> OsString {
    let parts: Vec<&OsStr> = directories.iter().map(|entry| entry.as_os_str()).collect();
    parts.join(OsStr::new(":"))
}

/// Whether this is a file that somebody may execute.
pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

/// The first program of this name.
pub fn find(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories
        .iter()
        .map(|directory| directory.join(name))
        .find(|path| is_executable(path))
}
