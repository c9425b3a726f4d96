//! Finds the user namespace that owns a namespace.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

/// `NS_GET_USERNS`, Linux 4.9: `_IO(0xb7, 1)`.
#[cfg(not(any(target_arch = "powerpc64", target_arch = "mips64")))]
const GET_USER_NAMESPACE: libc::c_ulong = 0xb701;
#[cfg(any(target_arch = "powerpc64", target_arch = "mips64"))]
const GET_USER_NAMESPACE: libc::c_ulong = 0x2000_b701;

/// Returns the user namespace that owns a namespace; `EPERM` if it is neither the caller's own nor a descendant of it.
pub(crate) fn owner(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: this request takes no argument; the descriptor is open while borrowed.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE as _) };
    let fd = Errno::result(fd)?;
    // SAFETY: the call returned a new descriptor, close-on-exec as all namespace descriptors are.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
