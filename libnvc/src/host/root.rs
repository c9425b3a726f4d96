//! Opens the driver root and resolves paths inside it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use log::warn;
use nix::errno::Errno;

use super::unforged::{FORGED, Place, unforged};
use crate::error::{Error, Result};
use crate::hint::{Hint, Setting};
use crate::inroot::{RootDir, name_of};
use crate::path::HostPath;

/// The directory that holds the driver: `/`, or the mount point of a driver container.
#[derive(Debug)]
pub struct DriverRoot {
    path: PathBuf,
    dir: RootDir,
    /// The directory's real path, when it was opened.
    real: Result<PathBuf, Errno>,
}

impl DriverRoot {
    /// Opens a driver root.
    ///
    /// # Errors
    /// `change root failed: <path>: <cause>` if it is not a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let dir = RootDir::open(path).map_err(|errno| {
            let hint =
                Setting::Root.between("name the directory that has the NVIDIA driver with ", "");
            Error::file("change root failed", path, errno).hint(hint)
        })?;
        Ok(Self {
            path: path.to_owned(),
            real: name_of(dir.as_fd()),
            dir,
        })
    }

    /// Returns the hint for a root without a driver.
    pub(crate) fn without_driver(path: &Path) -> Hint {
        let place = if path == Path::new("/") {
            String::new()
        } else {
            format!(" in {}", path.display())
        };
        let before =
            format!("install the NVIDIA driver{place}, or name the directory that has it with ");
        Setting::Root.between(before, "")
    }

    /// Returns the path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the host path of a file below the root, for messages.
    pub(crate) fn join(&self, path: &HostPath) -> PathBuf {
        path.below(&self.path)
    }

    /// Returns the host path of a file for an engine, which knows no root: links, which may be absolute, are resolved
    /// inside this one. None if the file does not exist.
    pub fn on_host(&self, path: &HostPath) -> Option<HostPath> {
        let (_, real) = self.real_path(path).ok()?;
        if self.path == Path::new("/") {
            return Some(path.clone());
        }
        Some(HostPath::new(self.join(&real)))
    }

    /// Opens a path inside the root, by reference only (`O_PATH`).
    ///
    /// # Errors
    /// The system's, unchanged: callers add the purpose of the path. The same holds for the other methods.
    pub(crate) fn resolve(&self, path: &HostPath) -> Result<OwnedFd, Errno> {
        self.dir.resolve(path.as_path())
    }

    /// Opens a path inside the root by reference only, without following a link in the last component.
    pub(crate) fn resolve_nofollow(&self, path: &HostPath) -> Result<OwnedFd, Errno> {
        self.dir.resolve_nofollow(path.as_path())
    }

    /// Opens a directory inside the root, by reference only.
    pub(crate) fn resolve_directory(&self, path: &HostPath) -> Result<OwnedFd, Errno> {
        self.dir.resolve_directory(path.as_path())
    }

    /// Opens a file or directory inside the root for reading.
    pub(crate) fn open_file(&self, path: &HostPath) -> Result<File, Errno> {
        self.dir.open_file(path.as_path())
    }

    /// Reads a file inside the root, up to 64 MiB.
    pub(crate) fn read(&self, path: &HostPath) -> Result<Vec<u8>, Errno> {
        self.dir.read(path.as_path())
    }

    /// Returns true if a path exists inside the root.
    pub(crate) fn exists(&self, path: &HostPath) -> Result<bool, Errno> {
        self.dir.exists(path.as_path())
    }

    /// Opens a path by reference, following no link that another user could have made: `ELOOP`.
    pub(crate) fn unforged(&self, path: &HostPath) -> Result<Place, Errno> {
        unforged(&self.dir, path)
    }

    /// Opens a path by reference, and returns its real path: links resolved, relative to the root. `ELOOP` if another
    /// user than the root's owner could have made a link on the way, with a warning.
    pub(crate) fn real_path(&self, path: &HostPath) -> Result<(OwnedFd, HostPath), Errno> {
        let own = self.real.as_ref().map_err(|errno| *errno)?;
        let (fd, real) = self.dir.real_path_below(own, path.as_path())?;
        let real = HostPath::new(real);
        if real == *path {
            return Ok((fd, real));
        }
        match self.unforged(path) {
            Ok(found) => Ok((found.fd, found.real)),
            Err(errno) => {
                if errno == Errno::ELOOP {
                    let path = self.join(path);
                    warn!("skipping {}: {FORGED}", path.display());
                }
                Err(errno)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    const USER: Option<u32> = Some(4242);

    /// Otherwise a user could choose which of root's files containers get.
    #[test]
    #[ignore = "needs root"]
    fn links_of_other_users_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["etc", "home"] {
            fs::create_dir(at(path)).unwrap();
        }
        for path in ["etc/secret", "home/plain"] {
            fs::write(at(path), "").unwrap();
        }
        for (target, link) in [
            ("/home/chosen", "etc/far"),
            ("/etc/secret", "home/chosen"),
            ("/home/plain", "etc/plain"),
            ("secret", "etc/own"),
            ("secret", "etc/theirs"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        chown(at("home"), USER, None).unwrap();
        for link in ["home/chosen", "etc/theirs"] {
            lchown(at(link), USER, None).unwrap();
        }
        let real = |path: &str| {
            let root = DriverRoot::open(dir.path()).unwrap();
            let found = root.real_path(&HostPath::new(path));
            found.map(|(_, real)| real.to_string())
        };
        assert_eq!(real("/etc/far"), Err(Errno::ELOOP));
        assert_eq!(real("/etc/theirs"), Err(Errno::ELOOP));
        assert_eq!(real("/etc/own").unwrap(), "/etc/secret");
        // That file itself is judged where it is handed over.
        assert_eq!(real("/etc/plain").unwrap(), "/home/plain");
        let root = DriverRoot::open(dir.path()).unwrap();
        assert!(root.on_host(&HostPath::new("/etc/far")).is_none());
        // Who owns the root could change all of it.
        chown(dir.path(), USER, None).unwrap();
        assert_eq!(real("/etc/far").unwrap(), "/etc/secret");
    }
}
