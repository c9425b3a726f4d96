//! Copies programs of this machine, with the libraries they need, into a root.
//!
//! The result is the smallest root in which programs run, built without network access. Library directories differ
//! between distributions; each program contains the loader's path.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files;

/// Copies `programs` (looked up in the usual directories; a missing one is an error) to the same path below `root`, and
/// the libraries they need into `libraries`, a directory below the root.
///
/// # Errors
/// A program is missing, `ldd` fails on it, or a file cannot be copied.
pub fn install(root: &Path, programs: &[&str], libraries: &str) -> io::Result<()> {
    for program in programs {
        let (source, at) = find(program)?;
        files::copy_program(&source, &files::below(root, &at))?;
        install_needed(root, &source, libraries)?;
    }
    Ok(())
}

/// Copies the libraries that a program needs into `libraries`, a directory below the root.
///
/// # Errors
/// `ldd` fails, or a file cannot be copied.
pub fn install_needed(root: &Path, program: &Path, libraries: &str) -> io::Result<()> {
    for library in needed_by(program)? {
        let at = if library.file_name().is_some_and(is_loader) {
            files::below(root, &library)
        } else {
            let name = library.file_name().unwrap_or_default();
            files::below(root, Path::new(libraries)).join(name)
        };
        if !at.exists() {
            files::copy_program(&library, &at)?;
        }
    }
    Ok(())
}

/// Copies the parts of the C library that the vendor's programs still link to, although newer versions have merged
/// them.
///
/// # Errors
/// This machine's shell needs no C library, or a file cannot be copied.
pub fn install_c_library(root: &Path, libraries: &str) -> io::Result<()> {
    let (shell, _) = find("sh")?;
    let needed = needed_by(&shell)?;
    let directory = needed
        .iter()
        .find(|path| path.ends_with("libc.so.6"))
        .and_then(|path| path.parent())
        .ok_or(io::ErrorKind::Unsupported)?;
    for part in [
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "libutil.so.1",
    ] {
        let (source, at) = (
            directory.join(part),
            files::below(root, Path::new(libraries)),
        );
        if source.exists() && !at.join(part).exists() {
            files::copy_program(&source, &at.join(part))?;
        }
    }
    Ok(())
}

/// Returns true if a library is the dynamic loader, whose path every program contains.
fn is_loader(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with("ld-linux")
}

/// Returns a program's file, and its path in the root.
fn find(program: &str) -> io::Result<(PathBuf, PathBuf)> {
    // Ubuntu's ldconfig is a wrapper script, which a root without dpkg does not need.
    if program == "ldconfig" {
        let source = host_ldconfig();
        return Ok((source, "/sbin/ldconfig".into()));
    }
    ["/bin", "/usr/bin", "/sbin", "/usr/sbin"]
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.exists())
        .map(|path| (path.clone(), path))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no program {program}")))
}

/// Returns this machine's ldconfig binary rather than a wrapper script.
pub fn host_ldconfig() -> PathBuf {
    let real = Path::new("/sbin/ldconfig.real");
    let plain = Path::new("/sbin/ldconfig");
    if real.exists() { real } else { plain }.to_owned()
}

/// Returns absolute paths of the libraries that a program needs, including the loader; empty for a static one.
fn needed_by(program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(parse_ldd(&text))
}

/// Parses lines `name => path (address)`, `path (address)` for the loader, `name (address)` for the vDSO.
fn parse_ldd(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let place = line.split_once("=> ").map_or(line, |(_, place)| place);
            let path = place.trim().split(" (").next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_output() {
        let text = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n\tlibgone.so => not found\n";
        let paths = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(parse_ldd(text), paths.map(PathBuf::from));
        assert_eq!(
            parse_ldd("\tnot a dynamic executable\n"),
            [""; 0].map(PathBuf::from)
        );
    }
}
