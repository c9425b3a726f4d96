//! Opens the driver root and resolves paths inside it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

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
        if self.path == Path::new("/") {
            return self.resolve(path).ok().map(|_| path.clone());
        }
        let (_, real) = self.real_path(path).ok()?;
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

    /// Opens a path by reference, and returns its real path: links resolved, relative to the root.
    pub(crate) fn real_path(&self, path: &HostPath) -> Result<(OwnedFd, HostPath), Errno> {
        let own = self.real.as_ref().map_err(|errno| *errno)?;
        let (fd, real) = self.dir.real_path_below(own, path.as_path())?;
        Ok((fd, HostPath::new(real)))
    }
}
