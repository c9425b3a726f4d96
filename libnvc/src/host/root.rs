//! Opens the driver root and resolves paths inside it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::inroot::RootDir;
use crate::path::HostPath;

/// The directory that holds the driver: `/`, or where a driver container is mounted.
#[derive(Debug)]
pub struct DriverRoot {
    path: PathBuf,
    dir: RootDir,
}

impl DriverRoot {
    /// Opens a driver root.
    ///
    /// # Errors
    /// `change root failed: <cause>`, upstream's text, if it is not a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let dir =
            RootDir::open(path).map_err(|errno| Error::system("change root failed", errno))?;
        Ok(Self {
            path: path.to_owned(),
            dir,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of something below the root, as messages name it.
    pub fn join(&self, path: &HostPath) -> PathBuf {
        path.below(&self.path)
    }

    /// Opens what a path leads to inside the root, by reference only (`O_PATH`).
    ///
    /// # Errors
    /// The system's, unchanged: callers know what the path was for. So with the other methods.
    pub fn resolve(&self, path: &HostPath) -> Result<OwnedFd, Errno> {
        self.dir.resolve(path.as_path())
    }

    /// Opens the directory that a path leads to inside the root, by reference only.
    pub(crate) fn resolve_directory(&self, path: &HostPath) -> Result<OwnedFd, Errno> {
        self.dir.resolve_directory(path.as_path())
    }

    /// Opens a file or directory inside the root for reading.
    pub fn open_file(&self, path: &HostPath) -> Result<File, Errno> {
        self.dir.open_file(path.as_path())
    }

    /// Reads a file inside the root, the first 64 MiB of it at most.
    pub fn read(&self, path: &HostPath) -> Result<Vec<u8>, Errno> {
        self.dir.read(path.as_path())
    }

    /// Whether a path leads to something inside the root.
    pub fn exists(&self, path: &HostPath) -> Result<bool, Errno> {
        self.dir.exists(path.as_path())
    }

    /// Opens what a path leads to, and its real path: links resolved, relative to the root.
    pub fn real_path(&self, path: &HostPath) -> Result<(OwnedFd, HostPath), Errno> {
        let (fd, real) = self.dir.real_path(path.as_path())?;
        Ok((fd, HostPath::new(real)))
    }
}
