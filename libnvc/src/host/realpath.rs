//! Resolves the real paths of many files in a few directories with few system calls.
//!
//! Libraries and programs are reported with all links resolved. Most lie in one directory and are files, or links to a
//! neighbour: one readlinkat(2) on the directory's descriptor, resolved once inside the driver root, is enough. Other
//! cases take the general path. Results are cached by path.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, readlinkat};
use nix::sys::stat::{SFlag, fstatat};

use crate::host::DriverRoot;
use crate::inroot;
use crate::path::HostPath;

/// Resolver with a cache.
#[derive(Debug)]
pub(super) struct RealPaths<'r> {
    root: &'r DriverRoot,
    directories: HashMap<HostPath, Result<(OwnedFd, HostPath), Errno>>,
    files: HashMap<HostPath, Result<(HostPath, SFlag), Errno>>,
}

impl<'r> RealPaths<'r> {
    pub(super) fn new(root: &'r DriverRoot) -> Self {
        Self {
            root,
            directories: HashMap::new(),
            files: HashMap::new(),
        }
    }

    /// Returns a real path inside the root, and the type of the file.
    pub(super) fn resolve_with_kind(
        &mut self,
        path: &HostPath,
    ) -> Result<(HostPath, SFlag), Errno> {
        if let Some(found) = self.files.get(path) {
            return found.clone();
        }
        let found = self.look_up(path);
        self.files.insert(path.clone(), found.clone());
        found
    }

    fn look_up(&mut self, path: &HostPath) -> Result<(HostPath, SFlag), Errno> {
        let name = path.file_name();
        if !is_plain(name) {
            return self.look_up_alone(path);
        }
        let (fd, real) = self.directory(path.parent())?;
        let name = match readlinkat(fd, name) {
            Err(Errno::EINVAL) => name.to_owned(),
            Err(errno) => return Err(errno),
            Ok(target) if is_plain(&target) => target,
            Ok(_) => return self.look_up_alone(path),
        };
        match fstatat(fd, &*name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| inroot::kind(&stat)) {
            // A link to a link, or to another directory, is rare.
            Ok(SFlag::S_IFLNK) => self.look_up_alone(path),
            Ok(kind) => Ok((real.join(name), kind)),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the directory with its links resolved.
    pub(super) fn directory(
        &mut self,
        path: HostPath,
    ) -> Result<(BorrowedFd<'_>, &HostPath), Errno> {
        let root = self.root;
        let entry = self.directories.entry(path);
        let found = entry.or_insert_with_key(|path| root.real_path(path));
        match &*found {
            Ok((fd, real)) => Ok((fd.as_fd(), real)),
            Err(errno) => Err(*errno),
        }
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
            assert_eq!(paths.resolve_with_kind(&path), general, "{path}");
        }
        let near = HostPath::new("/lib/near.so");
        let real = HostPath::new("/usr/lib/real.so.1.2");
        let found = paths.resolve_with_kind(&near);
        assert_eq!(found, Ok((real, SFlag::S_IFREG)));
    }
}
