//! Resolves the real paths of many files in a few directories with few system calls.
//!
//! Libraries and programs are reported with all links resolved. Most lie in one directory and are files, or links to a
//! neighbour: one or two calls on the directory's descriptor, resolved once inside the driver root, are enough. Other
//! cases take the general path.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::stat::{SFlag, fstatat};

use crate::host::DriverRoot;
use crate::inroot;
use crate::path::HostPath;

/// Resolver that keeps directories open.
#[derive(Debug)]
pub(super) struct RealPaths<'r> {
    root: &'r DriverRoot,
    directories: HashMap<HostPath, Result<Rc<Directory>, Errno>>,
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    /// The path by which it was opened.
    pub(super) listed: HostPath,
    /// The same with links resolved.
    pub(super) real: HostPath,
    pub(super) fd: OwnedFd,
}

impl<'r> RealPaths<'r> {
    pub(super) fn new(root: &'r DriverRoot) -> Self {
        Self {
            root,
            directories: HashMap::new(),
        }
    }

    /// Opens a directory.
    pub(super) fn directory(&mut self, path: &HostPath) -> Result<Rc<Directory>, Errno> {
        if let Some(known) = self.directories.get(path) {
            return known.clone();
        }
        let opened = self.root.real_path(path).map(|(fd, real)| {
            let listed = path.clone();
            Rc::new(Directory { listed, real, fd })
        });
        self.directories.insert(path.clone(), opened.clone());
        opened
    }

    /// Returns a real path inside the root, and the type of the file.
    pub(super) fn resolve(&mut self, path: &HostPath) -> Result<(HostPath, SFlag), Errno> {
        let name = path.file_name();
        if !is_plain(name) {
            return self.look_up_alone(path);
        }
        let directory = self.directory(&path.parent())?;
        self.look_up(&directory, name)
    }

    /// Does the same with a name in a directory.
    pub(super) fn look_up(
        &self,
        directory: &Directory,
        name: &OsStr,
    ) -> Result<(HostPath, SFlag), Errno> {
        let kind = |name: &OsStr| {
            let stat = fstatat(&directory.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            Ok(inroot::kind(&stat))
        };
        let found = kind(name)?;
        if found != SFlag::S_IFLNK {
            return Ok((directory.real.join(name), found));
        }
        // A link to a link, or to another directory, is rare.
        let target = readlinkat(&directory.fd, name)?;
        if is_plain(&target) {
            let found = kind(&target)?;
            if found != SFlag::S_IFLNK {
                return Ok((directory.real.join(target), found));
            }
        }
        self.look_up_alone(&directory.listed.join(name))
    }

    /// Looks a path up from the root.
    fn look_up_alone(&self, path: &HostPath) -> Result<(HostPath, SFlag), Errno> {
        let (fd, real) = self.root.real_path(path)?;
        Ok((real, inroot::kind(&inroot::stat(fd.as_fd())?)))
    }
}

fn is_plain(name: &OsStr) -> bool {
    !matches!(name.as_bytes(), b"" | b"." | b"..") && !name.as_bytes().contains(&b'/')
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn agrees_with_the_general_way() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::create_dir_all(at("usr/lib/sub")).unwrap();
        std::fs::create_dir(at("opt")).unwrap();
        symlink("usr/lib", at("lib")).unwrap();
        std::fs::write(at("usr/lib/real.so.1.2"), "").unwrap();
        std::fs::write(at("opt/far.so.2"), "").unwrap();
        for (target, link) in [
            ("real.so.1.2", "usr/lib/near.so"),
            ("near.so", "usr/lib/twice.so"),
            ("/opt/far.so.2", "usr/lib/far.so"),
            ("../../opt/far.so.2", "usr/lib/up.so"),
            ("gone.so", "usr/lib/dangling.so"),
            ("..", "usr/lib/parent"),
            ("loop.so", "usr/lib/loop.so"),
            ("/loop", "loop"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        let root = DriverRoot::open(dir.path()).unwrap();
        let mut paths = RealPaths::new(&root);
        for path in [
            "/lib/real.so.1.2",
            "/usr/lib/real.so.1.2",
            "/lib/near.so",
            "/lib/twice.so",
            "/lib/far.so",
            "/lib/up.so",
            "/lib/dangling.so",
            "/lib/parent",
            "/lib/loop.so",
            "/lib/gone.so",
            "/lib/sub",
            "/lib/sub/..",
            "/lib/real.so.1.2/x",
            "/nowhere/x",
            "/loop/x",
            "/",
            "/..",
        ] {
            let path = HostPath::new(path);
            let general = root.real_path(&path).map(|(_, real)| real);
            let kind = |found: &HostPath| {
                let stat = root.resolve(found).and_then(|fd| inroot::stat(fd.as_fd()));
                inroot::kind(&stat.unwrap())
            };
            let general = general.map(|real| (real.clone(), kind(&real)));
            assert_eq!(paths.resolve(&path), general, "{path}");
        }
        let real = HostPath::new("/usr/lib/real.so.1.2");
        let found = paths.resolve(&HostPath::new("/lib/near.so"));
        assert_eq!(found, Ok((real, SFlag::S_IFREG)));
    }
}
