//! Asks namespaces who owns them.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

/// `NS_GET_USERNS`, Linux 4.9: `_IO(0xb7, 1)`.
#[cfg(not(any(target_arch = "powerpc64", target_arch = "mips64")))]
const GET_USER_NAMESPACE: libc::c_ulong = 0xb701;
#[cfg(any(target_arch = "powerpc64", target_arch = "mips64"))]
const GET_USER_NAMESPACE: libc::c_ulong = 0x2000_b701;

/// The user namespace that a namespace belongs to; `EPERM` if that is neither the caller's own nor below it.
pub(crate) fn owner(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: this request takes no argument; the descriptor is open while borrowed.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE as _) };
    let fd = Errno::result(fd)?;
    // SAFETY: the call made this descriptor for us alone; it is closed on execution, as namespace descriptors are.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
