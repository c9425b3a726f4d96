//! Caches the mounts of open directories of the container, and the privileges there.
//!
//! A descriptor stays on the mount on which it was opened, whatever is renamed or mounted later, so neither changes
//! while it is open.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

use crate::apply::reach::Reach;
use crate::mount_id::mount_id_by;

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    fd: OwnedFd,
    mount: OnceCell<u64>,
    reach: OnceCell<Reach>,
}

impl OpenDirectory {
    /// Returns the id of its mount; `descriptors` is this thread's `/proc/thread-self/fd`.
    pub(super) fn mount_id(&self, descriptors: BorrowedFd<'_>) -> Result<u64, Errno> {
        once(&self.mount, || mount_id_by(self.as_fd(), descriptors))
    }

    /// Returns the privileges for creating files in it; calls `judge` the first time.
    pub(super) fn reach(
        &self,
        judge: impl FnOnce() -> Result<Reach, Errno>,
    ) -> Result<Reach, Errno> {
        once(&self.reach, judge)
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
        let (mount, reach) = (OnceCell::new(), OnceCell::new());
        Self { fd, mount, reach }
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
