//! Judges paths that are handed to a program which opens them later: an engine, a low-level runtime, or a hook.
//!
//! Until then, whoever can rename a directory on the way, or put a link into the file's place, chooses another file. A
//! file that lies directly in a directory of all users counts as theirs even if the directory is sticky: its root user
//! may be that of a container with the directory as a volume.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use libnvc::{Error, Result};
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};

use super::owner::{Caller, Exposed, is_for_everybody, is_sticky};
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
            caller: Caller::current(),
            directories: HashMap::new(),
        }
    }
}

impl HandedPaths {
    /// Fails if a user other than root and the caller can exchange a file or directory for another.
    ///
    /// # Errors
    /// It names the directory and who that is.
    pub fn check(&mut self, path: &Path) -> Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let (directories, caller) = (&mut self.directories, self.caller);
        let found = directories.entry(parent.to_owned());
        let found = found.or_insert_with_key(|path| directory(caller, path));
        let (place, stat) = &**found.as_ref().map_err(Clone::clone)?;
        if is_for_everybody(stat) {
            return Err(Exposed::by_everybody(parent).refusal(path));
        }
        // What does not exist cannot be opened.
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        let Ok(found) = fstatat(place.directory(), name, flags) else {
            return Ok(());
        };
        if kind(&found) == SFlag::S_IFLNK {
            let target = find(self.caller, path, PathTrust::Any, true)?;
            return refused(target.exposed(), path);
        }
        let owner = is_sticky(stat).then(|| self.caller.owner(path, &found));
        refused(owner.flatten().as_ref(), path)
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
    exposed.map_or(Ok(()), |exposed| Err(exposed.refusal(path)))
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
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().join("top");
        fs::create_dir_all(top.join("lib")).unwrap();
        fs::write(top.join("lib/file"), "").unwrap();
        change(&top);
        let error = HandedPaths::default().check(&top.join("lib/file")).err()?;
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
}
