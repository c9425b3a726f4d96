//! Copies programs of this machine, with the libraries they need, into a root.
//!
//! That is the smallest root in which programs run, and needs no network. Where libraries go differs between
//! distributions; the loader's place is fixed in every program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files;

/// Copies `programs` (looked up in the usual directories; a missing one is an error) to the same path below `root`, and
/// the libraries they need into `libraries`, a directory below the root.
///
/// # Errors
/// A program is not there, `ldd` does not like it, or a file cannot be copied.
pub fn install(root: &Path, programs: &[&str], libraries: &str) -> io::Result<()> {
    for program in programs {
        let (source, at) = find(program)?;
        files::copy_program(&source, &files::below(root, &at))?;
        for library in needed_by(&source)? {
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
    }
    Ok(())
}

/// Copies the parts of the C library that the vendor's programs still name, though newer ones have them all in one.
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
    for part in ["libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"] {
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

/// Whether a library is the dynamic loader, whose path is fixed in every program.
fn is_loader(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with("ld-linux")
}

/// Where a program's file is, and the path under which it goes into the root.
fn find(program: &str) -> io::Result<(PathBuf, PathBuf)> {
    // Ubuntu's ldconfig is a script around the real one, which a root without dpkg does not need.
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

/// This machine's ldconfig: the program, not a script in its place.
pub fn host_ldconfig() -> PathBuf {
    let real = Path::new("/sbin/ldconfig.real");
    let plain = Path::new("/sbin/ldconfig");
    if real.exists() { real } else { plain }.to_owned()
}

/// Absolute paths of the libraries a program needs, the loader among them; none for a static one.
fn needed_by(program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(parse_ldd(&text))
}

/// Lines are `name => path (address)`, `path (address)` for the loader, `name (address)` for the kernel's.
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
