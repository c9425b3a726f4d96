//! Compares the contents of a directory with the cache's entries for it.
//!
//! Times do not prove that a cache is up to date: builders of reproducible images set the same time on all files, and a
//! layer can add a file without changing the time of its directory. So names are compared, without opening the image's
//! libraries. A file is opened only if its name does not reveal which listed library it belongs to.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::readlinkat;

use super::MAX_NAMES;
use super::unusable::{Unusable, unreadable};
use crate::directory;
use crate::inroot::{Image, open_to_list};
use crate::ldcache::library;
use crate::sys::mount;

/// Limit of opened files per directory. Real images have one or two such files: GNU ld's scripts.
const MAX_OPENED: usize = 64;

/// The cache's entries for a directory.
#[derive(Debug, Default)]
pub(super) struct CachedNames<'a> {
    /// Names of files.
    pub(super) names: HashSet<&'a [u8]>,
    /// Names that programs ask for.
    pub(super) sonames: HashSet<&'a [u8]>,
}

/// Limit of files that an engine has mounted in a directory; the driver has about a hundred, with the links to them.
const MAX_MOUNTED: usize = 1 << 10;

/// Checks that a directory has the libraries that the cache lists, and no others; `after_mounts`, those that an engine has
/// mounted do not count.
///
/// # Errors
/// The reason why the cache is stale.
pub(super) fn check(
    image: Image<'_>,
    path: &Path,
    fd: &OwnedFd,
    listed: &CachedNames<'_>,
    after_mounts: bool,
) -> Result<(), Unusable> {
    let most = MAX_OPENED + if after_mounts { MAX_MOUNTED } else { 0 };
    let CachedNames { names, sonames } = listed;
    let mut present = 0;
    let mut strangers: Vec<OsString> = Vec::new();
    let opened = open_to_list(fd).map_err(|errno| unreadable(path, errno))?;
    let done = directory::list(opened.as_fd(), &mut { MAX_NAMES }, |entry| {
        let name = entry.name.as_bytes();
        if entry.kind == libc::DT_DIR {
            return;
        }
        if names.contains(name) {
            present += 1;
        } else if library::is_name(name)
            && !is_version_of_listed(name, names)
            && strangers.len() <= names.len() + most
        {
            strangers.push(entry.name.to_owned());
        }
    });
    done.map_err(|errno| unreadable(path, errno))?;
    if present < names.len() {
        return Err(Unusable::MissingLibraries(path.to_owned()));
    }
    if strangers.is_empty() {
        return Ok(());
    }
    let mut too_many = strangers.len() > names.len() + most;
    if after_mounts {
        strangers.retain(|name| !is_mounted(image, path, name));
    }
    // Older versions of glibc name the file after their version: libc.so.6 is a link to libc-2.31.so.
    let targets = names
        .iter()
        .filter_map(|name| readlinkat(fd, OsStr::from_bytes(name)).ok());
    let targets: HashSet<OsString> = targets.collect();
    strangers.retain(|name| !targets.contains(name));
    too_many |= strangers.len() > MAX_OPENED;
    let missed = |name: &&OsString| is_missed(image, path, fd, name, sonames);
    match strangers.iter().find(|name| too_many || missed(name)) {
        Some(name) => Err(Unusable::UnlistedLibrary(path.join(name))),
        None => Ok(()),
    }
}

/// Returns true if a name leads to a file that was mounted into the image.
pub(super) fn is_mounted(image: Image<'_>, path: &Path, name: &OsStr) -> bool {
    let found = image.root.resolve(&path.join(name));
    found.is_ok_and(|found| {
        mount::place(found.as_fd()).is_ok_and(|place| place.is_root == Some(true))
    })
}

/// Returns true if a listed library has this name up to a dot: `libz.so.1` is listed for `libz.so.1.2.13`.
fn is_version_of_listed(name: &[u8], names: &HashSet<&[u8]>) -> bool {
    let Some(versions) = name.windows(4).position(|part| part == b".so.") else {
        return false;
    };
    let dots = name.iter().enumerate().skip(versions + 4);
    let dots = dots.filter(|(_, byte)| **byte == b'.');
    dots.filter_map(|(at, _)| name.get(..at))
        .any(|shorter| names.contains(shorter))
}

/// Returns true if ldconfig would list an unlisted file.
fn is_missed(
    image: Image<'_>,
    path: &Path,
    fd: &OwnedFd,
    name: &OsStr,
    sonames: &HashSet<&[u8]>,
) -> bool {
    match library::read(image, path, fd.as_fd(), name) {
        Ok(Some(found)) => !sonames.contains(found.soname.as_slice()),
        Ok(None) => false,
        Err(why) => {
            log::debug!("not a library: {}: {why}", path.join(name).display());
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_belong_to_listed_libraries() {
        let listed: HashSet<&[u8]> = [&b"libz.so.1"[..], b"libfoo.so", b"libbar-1.so.2.3"].into();
        let of_listed = |name: &str| is_version_of_listed(name.as_bytes(), &listed);
        assert!(of_listed("libz.so.1.2.13") && of_listed("libbar-1.so.2.3.4"));
        for other in [
            "libz.so.2",
            "libz.so.10",
            "libz.so",
            "libfoo.so.1",
            "libbar-1.so.2",
        ] {
            assert!(!of_listed(other), "{other}");
        }
    }
}
