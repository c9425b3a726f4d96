//! Creates files and directories of a root with exact modes, independent of the umask.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

/// Returns `path`, absolute or not, below `root`.
pub fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Creates a directory and its missing parents with mode 0755.
///
/// # Errors
/// As of the system calls.
pub fn directory(path: &Path) -> io::Result<()> {
    // The parent of a relative name is the empty path.
    if path.is_dir() || path.as_os_str().is_empty() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        directory(parent)?;
    }
    fs::create_dir(path).map_err(|error| named(&error, path))?;
    mode(path, 0o755)
}

/// Writes a file with a mode; creates its parents.
///
/// # Errors
/// As of the system calls.
pub fn file(path: &Path, content: impl AsRef<[u8]>, bits: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        directory(parent)?;
    }
    match bits & 0o111 {
        0 => fs::write(path, content),
        _ => write_by(Command::new("tee").arg(path), content.as_ref()),
    }
    .map_err(|error| named(&error, path))?;
    mode(path, bits)
}

/// Writes a file that may be executed, by another process.
///
/// If this one had it open for writing, a child that another test's thread forks at the same time would briefly hold
/// the descriptor too, and executing the file would fail with ETXTBSY.
fn write_by(writer: &mut Command, content: &[u8]) -> io::Result<()> {
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let written = writer.stdin.take().map(|mut pipe| pipe.write_all(content));
    let status = writer.wait()?;
    written.transpose()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("the process that writes it failed"))
    }
}

/// Creates a symlink and its parents.
///
/// # Errors
/// As of the system calls.
pub fn link(path: &Path, target: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        directory(parent)?;
    }
    symlink(target, path).map_err(|error| named(&error, path))
}

/// Copies a program or library, following links; creates parents.
///
/// # Errors
/// As of the system calls.
pub fn copy_program(source: &Path, path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        directory(parent)?;
    }
    let mut copy = Command::new("cp");
    write_by(copy.arg("--").args([source, path]), b"").map_err(|error| named(&error, source))?;
    mode(path, 0o755)
}

/// Sets permission bits.
///
/// # Errors
/// As of the system call.
pub fn mode(path: &Path, bits: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).map_err(|error| named(&error, path))
}

/// Returns names and values of a file's extended attributes, or a link's own; empty if the filesystem has none.
///
/// # Errors
/// As of the system calls.
pub fn extended_attributes(path: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut names = Vec::with_capacity(4096);
    match rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    }
    let mut found = Vec::new();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = Vec::with_capacity(65536);
        rustix::fs::lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value))?;
        found.push((String::from_utf8_lossy(name).into_owned(), value));
    }
    found.sort();
    Ok(found)
}

fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
