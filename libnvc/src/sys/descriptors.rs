//! Makes room for file descriptors, and closes many at once.

use std::ffi::c_uint;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

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

/// Closes descriptors, neighbours with one call.
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
        if !close_run(first, last) {
            for &number in run {
                // SAFETY: this descriptor was owned by the vector and nothing else.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
}

/// Closes all descriptors from `first` to `last`, which must all be the caller's; false where the call is missing
/// (before Linux 5.9, in sandboxes).
fn close_run(first: RawFd, last: RawFd) -> bool {
    let (Ok(first), Ok(last)) = (c_uint::try_from(first), c_uint::try_from(last)) else {
        return false;
    };
    // SAFETY: the call takes no pointers, and every descriptor of the range was given up by its owner.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
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
        // Other tests may take the numbers again meanwhile, but not with this file.
        let name = |number| std::fs::read_link(format!("/proc/self/fd/{number}"));
        let left = numbers
            .iter()
            .filter(|number| name(**number).is_ok_and(|name| name.ends_with("null")));
        assert!(left.count() < numbers.len());
    }
}
