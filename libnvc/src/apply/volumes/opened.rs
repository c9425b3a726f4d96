//! Caches the mounts of open directories of the container, and the rights there.
//!
//! A descriptor stays on the mount on which it was opened, whatever is renamed or mounted later, so neither changes
//! while it is open.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

use crate::apply::volumes::rights::Rights;
use crate::mount_id::mount_id_by;

/// An open directory.
#[derive(Debug)]
pub(in crate::apply) struct OpenDirectory {
    fd: OwnedFd,
    mount: OnceCell<u64>,
    rights: OnceCell<Rights>,
}

impl OpenDirectory {
    /// Returns the id of its mount; `descriptors` is this thread's `/proc/thread-self/fd`.
    pub(in crate::apply) fn mount_id(&self, descriptors: BorrowedFd<'_>) -> Result<u64, Errno> {
        once(&self.mount, || mount_id_by(self.as_fd(), descriptors))
    }

    /// Returns the rights for creating files in it; calls `judge` the first time.
    pub(in crate::apply) fn rights(
        &self,
        judge: impl FnOnce() -> Result<Rights, Errno>,
    ) -> Result<Rights, Errno> {
        once(&self.rights, judge)
    }
}

/// Returns the value of a cell; fills an empty cell.
fn once<T: Copy>(cell: &OnceCell<T>, fill: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if let Some(known) = cell.get() {
        return Ok(*known);
    }
    let value = fill()?;
    Ok(*cell.get_or_init(|| value))
}

impl From<OwnedFd> for OpenDirectory {
    fn from(fd: OwnedFd) -> Self {
        let (mount, rights) = (OnceCell::new(), OnceCell::new());
        Self { fd, mount, rights }
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
