//! Enlarges the file descriptor table, keeps descriptors off the standard streams, and closes many at once.

use std::ffi::c_uint;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::error::errno_of;

/// Makes the process's descriptor table large enough for `count` descriptors.
///
/// The kernel doubles a full table. If threads share the table, it first waits for an RCU grace period, some ten
/// milliseconds. Before threads are started the call costs nothing.
pub(crate) fn reserve(any: BorrowedFd<'_>, count: usize) -> Result<(), Errno> {
    let last = RawFd::try_from(count).map_err(|_| Errno::EMFILE)?;
    // SAFETY: F_DUPFD_CLOEXEC takes an integer and makes a new descriptor; the one it copies is open while borrowed.
    let ret = unsafe { libc::fcntl(any.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last) };
    let fd = Errno::result(ret)?;
    // SAFETY: the call above returned a new descriptor. Dropping it does not shrink the table.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Returns a duplicate if a file has the descriptor of a standard stream, which a new file gets if the caller has
/// closed its own: setting up a child's streams would overwrite it.
pub(crate) fn above_streams(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // The standard library never duplicates to a number below 3.
    fd.try_clone().map_err(|error| errno_of(&error))
}

/// Closes descriptors, with one call for each run of consecutive numbers.
pub(crate) fn close_all(descriptors: Vec<OwnedFd>) {
    let mut numbers: Vec<RawFd> = descriptors
        .into_iter()
        .map(IntoRawFd::into_raw_fd)
        .collect();
    numbers.sort_unstable();
    for run in numbers.chunk_by(|a, b| b.checked_sub(1) == Some(*a)) {
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else {
            continue;
        };
        let closes = match (c_uint::try_from(first), c_uint::try_from(last)) {
            // All of them were owned by the vector.
            (Ok(first), Ok(last)) => close_range(first, last, 0),
            _ => false,
        };
        if !closes {
            for &number in run {
                // SAFETY: this descriptor was owned by the vector and nothing else.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
}

/// Closes all descriptors from `first` to `last`, none of which may have an owner that still runs, or with
/// `CLOSE_RANGE_CLOEXEC` marks them. Returns false if close_range(2) or its flag is missing (before Linux 5.9 and 5.11,
/// in sandboxes). By number, because glibc has the function only since 2.34.
pub(super) fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> bool {
    // SAFETY: the call takes no pointers, and no owner in the range loses its descriptor (see above).
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn many_are_closed_and_others_stay() {
        let open = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut all: Vec<OwnedFd> = (0..20).map(|_| open()).collect();
        let kept = all.remove(7);
        let numbers: Vec<RawFd> = all.iter().map(AsRawFd::as_raw_fd).collect();
        close_all(all);
        assert!(kept.try_clone().is_ok());
        // Other tests may reuse the numbers meanwhile, but not for this file.
        let name = |number| std::fs::read_link(format!("/proc/self/fd/{number}"));
        let left = numbers
            .iter()
            .filter(|number| name(**number).is_ok_and(|name| name.ends_with("null")));
        assert!(left.count() < numbers.len());
    }
}
