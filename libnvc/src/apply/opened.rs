//! Open directories of the container, which cache their mount and the privileges there.
//!
//! A descriptor stays on the mount on which it was opened, whatever is renamed or mounted later, so neither changes
//! while it is open.

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::apply::reach::Reach;
use crate::read_file;
use crate::sys::mount;

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
        once(&self.mount, || mount_id(self.as_fd(), descriptors))
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

/// Returns the id of the mount that a descriptor is on.
pub(super) fn mount_id(fd: BorrowedFd<'_>, descriptors: BorrowedFd<'_>) -> Result<u64, Errno> {
    if let Some(id) = mount::place(fd)?.id {
        return Ok(id);
    }
    // Before Linux 5.8.
    let info = open_sibling(descriptors, &format!("fdinfo/{}", fd.as_raw_fd()))?;
    let info = read_file::read(File::from(info), u64::MAX)?;
    let mut lines = info.split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| {
        let text = std::str::from_utf8(line.strip_prefix(b"mnt_id:")?);
        text.ok()?.trim().parse().ok()
    });
    id.ok_or(Errno::ENOSYS)
}

/// Opens a file beside this thread's `fd` directory in /proc.
pub(super) fn open_sibling(descriptors: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let name = format!("../{name}");
    openat(descriptors, name.as_str(), flags, Mode::empty())
}
