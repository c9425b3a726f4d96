//! Judges paths that are handed to a program which opens them later: an engine, a low-level runtime, or a hook.
//!
//! Until then, whoever can rename a directory on the way, put a link into the file's place, or write to it, chooses
//! another file. A directory of all users on the way counts as theirs even if it is sticky: the root user of a container
//! with that directory as a volume may rename what is in it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use libnvc::trust::{Caller, Exposed, is_sticky};
use libnvc::{Error, Result};
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};

use super::refusal::refusal;
use super::walk::{PathTrust, Place, find, find_directory, kind};

/// Judges paths, each directory once.
#[derive(Debug)]
pub struct HandedPaths {
    caller: Caller,
    /// Each with its attributes, or the error if another user can exchange what is in it.
    directories: HashMap<PathBuf, Result<Box<(Place, FileStat)>>>,
}

impl Default for HandedPaths {
    fn default() -> Self {
        Self {
            caller: Caller::current().without_shared(),
            directories: HashMap::new(),
        }
    }
}

impl HandedPaths {
    /// Fails if a user other than root and the caller can exchange a file or directory for another, or write to it.
    ///
    /// # Errors
    /// It names the directory or file and who that is.
    pub fn check(&mut self, path: &Path) -> Result<()> {
        let caller = self.caller;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            // The root, or a path that ends in `..`.
            return self.directory(path).map(drop);
        };
        let (place, stat) = self.directory(parent)?;
        let directory = place.directory();
        // What does not exist cannot be opened.
        let Ok(found) = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        if kind(&found) != SFlag::S_IFLNK {
            let owner = is_sticky(stat).then(|| caller.owner(path, &found));
            refused(owner.flatten().as_ref(), path)?;
            return last(caller, path, directory, name);
        }
        let target = fstatat(directory, name, AtFlags::empty());
        if target.is_ok_and(|target| kind(&target) == SFlag::S_IFDIR) {
            return self.directory(path).map(drop);
        }
        let target = find(caller, path, PathTrust::Any, true)?;
        refused(target.exposed(), path)?;
        last(caller, path, target.directory(), &target.name)
    }

    /// Returns a directory that may be named, with its attributes.
    fn directory(&mut self, path: &Path) -> Result<&(Place, FileStat)> {
        let caller = self.caller;
        let found = self.directories.entry(path.to_owned());
        let found = found.or_insert_with_key(|path| directory(caller, path));
        found.as_deref().map_err(Clone::clone)
    }
}

/// Judges a file or directory itself. Who may write to a device or socket changes no file.
fn last(caller: Caller, path: &Path, directory: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) if matches!(kind(&found), SFlag::S_IFREG | SFlag::S_IFDIR) => {
            refused(caller.file(path, directory, name, &found).as_ref(), path)
        }
        _ => Ok(()),
    }
}

fn directory(caller: Caller, path: &Path) -> Result<Box<(Place, FileStat)>> {
    let place = find_directory(caller, path)?;
    refused(place.exposed(), path)?;
    let stat = fstat(place.directory());
    let stat = stat.map_err(|errno| Error::file("stat failed", path, errno))?;
    Ok(Box::new((place, stat)))
}

fn refused(exposed: Option<&Exposed>, path: &Path) -> Result<()> {
    exposed.map_or(Ok(()), |exposed| Err(refusal(exposed, path)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const USER: u32 = 4242;

    /// Judges `top/lib/file` after a change; None if it may be handed over.
    fn judged(change: impl Fn(&Path)) -> Option<String> {
        judged_as("lib/file", change)
    }

    fn judged_as(name: &str, change: impl Fn(&Path)) -> Option<String> {
        // Not in a directory of all users.
        let scratch = tempfile::tempdir_in("/var/lib").unwrap();
        let top = scratch.path().join("top");
        fs::create_dir_all(top.join("lib")).unwrap();
        fs::write(top.join("lib/file"), "").unwrap();
        change(&top);
        let error = HandedPaths::default().check(&top.join(name)).err()?;
        Some(error.message().replace(top.to_str().unwrap(), "TOP"))
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn group(path: &Path, name: &str) {
        let text = fs::read_to_string("/etc/group").unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let gid = line.split(':').nth(2).unwrap().parse().unwrap();
        chown(path, None, Some(gid)).unwrap();
    }

    #[test]
    #[ignore = "needs root"]
    fn who_can_exchange_a_path_is_named() {
        assert_eq!(judged(|_| ()), None);
        // /usr/local of Debian, and the store of Nix.
        assert_eq!(
            judged(|top| {
                group(top, "staff:");
                mode(top, 0o2775);
            }),
            None
        );
        assert_eq!(
            judged(|top| {
                chown(top, None, Some(USER)).unwrap();
                mode(top, 0o1775);
            }),
            None
        );
        let refused = |change: &dyn Fn(&Path), expected: &str| {
            let text = judged(change).unwrap();
            assert!(text.contains(expected), "{text}");
        };
        refused(
            &|top| chown(top, Some(USER), None).unwrap(),
            "TOP belongs to the user 4242",
        );
        refused(&|top| mode(top, 0o777), "every user may write to TOP");
        refused(
            &|top| {
                chown(top, None, Some(USER)).unwrap();
                mode(top, 0o775);
            },
            "the group 4242 may write to TOP",
        );
        // As /tmp/nvidia-mps: a container's root may have the directory.
        refused(
            &|top| mode(&top.join("lib"), 0o1777),
            "every user may write to TOP/lib",
        );
        refused(
            &|top| {
                mode(&top.join("lib"), 0o1775);
                chown(top.join("lib/file"), Some(USER), None).unwrap();
            },
            "TOP/lib/file belongs to the user 4242",
        );
        // The directory on the way could be renamed.
        refused(&|top| mode(top, 0o1777), "every user may write to TOP");
        refused(
            &|top| mode(&top.join("lib/file"), 0o666),
            "every user may write to TOP/lib/file",
        );
        refused(
            &|top| chown(top.join("lib/file"), Some(USER), None).unwrap(),
            "TOP/lib/file belongs to the user 4242",
        );
        let link = |top: &Path| {
            fs::create_dir(top.join("other")).unwrap();
            fs::rename(top.join("lib/file"), top.join("other/file")).unwrap();
            symlink("../other/file", top.join("lib/file")).unwrap();
        };
        assert_eq!(judged(link), None);
        refused(
            &|top| {
                link(top);
                chown(top.join("other"), Some(USER), None).unwrap();
            },
            "other belongs to the user 4242",
        );
        refused(
            &|top| {
                link(top);
                mode(&top.join("other"), 0o1777);
            },
            "every user may write to TOP",
        );
        refused(
            &|top| {
                link(top);
                mode(&top.join("other/file"), 0o666);
            },
            "every user may write to TOP/lib/file",
        );
        refused(
            &|top| {
                link(top);
                lchown(top.join("lib/file"), Some(USER), None).unwrap();
            },
            "TOP/lib/file belongs to the user 4242",
        );
        refused(
            &|top| {
                fs::rename(top.join("lib"), top.join("real")).unwrap();
                symlink("real", top.join("lib")).unwrap();
                mode(&top.join("real"), 0o777);
            },
            "every user may write to TOP/real",
        );
    }

    #[test]
    #[ignore = "needs root"]
    fn directories_and_devices_are_judged_as_such() {
        let nothing = |_: &Path| ();
        for name in ["lib", "lib/..", "lib/missing", "/", "/dev/null"] {
            assert_eq!(judged_as(name, nothing), None, "{name}");
        }
        let folder = |top: &Path| symlink("lib", top.join("folder")).unwrap();
        assert_eq!(judged_as("folder", folder), None);
        for name in ["lib", "lib/.", "lib/../lib", "folder", "lib/.."] {
            let exposed = |top: &Path| {
                folder(top);
                mode(&top.join("lib"), 0o1777);
            };
            let text = judged_as(name, exposed).unwrap();
            assert!(
                text.contains("every user may write to TOP"),
                "{name}: {text}"
            );
        }
    }
}
