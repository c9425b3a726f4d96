//! Makes room for file descriptors.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

/// Makes the process's table of descriptors large enough for `count` of them.
///
/// The kernel doubles the table when it is full, and when threads share it, waits for an RCU grace period first: some ten
/// milliseconds. Before threads are started it costs nothing.
pub(crate) fn reserve(any: BorrowedFd<'_>, count: usize) -> Result<(), Errno> {
    let last = RawFd::try_from(count).map_err(|_| Errno::EMFILE)?;
    // SAFETY: F_DUPFD_CLOEXEC takes an integer and makes a new descriptor; the one it copies is open while borrowed.
    let ret = unsafe { libc::fcntl(any.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last) };
    let fd = Errno::result(ret)?;
    // SAFETY: the call above made it for us alone. Dropping it leaves the table as large as it is.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}
