//! Closes inherited descriptors, prevents tracing, and ends a process at once, also when its parent ends.
//!
//! Made for processes that were just started and own nothing they will use again: the NVML query.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::Pid;

use super::descriptors::close_range;

/// Returns true if this process has one thread and shares its memory with no other process.
pub(crate) fn is_alone() -> bool {
    // Changes nothing for a lone process, and fails for all others: unshare(2).
    unshare(CloneFlags::CLONE_VM).is_ok()
}

/// Closes every descriptor from `first` on.
///
/// Call this before anything in this process owns a descriptor in that range, or if no such owner ever runs again: the
/// standard library's owners would otherwise use or close a descriptor that has been reused.
pub(crate) fn close_from(first: u16) {
    let first = c_uint::from(first);
    if !close_range(first, c_uint::MAX, 0) {
        close_listed(first);
    }
}

/// Does the same by the list in procfs, or without procfs by trying all numbers up to the limit.
fn close_listed(first: c_uint) {
    let open: Vec<c_uint> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect(),
        Err(_) => {
            let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
            let end = limit.map_or(1024, |(soft, _)| soft.min(1 << 20));
            (0..c_uint::try_from(end).unwrap_or(1024)).collect()
        }
    };
    for fd in open.into_iter().filter(|fd| *fd >= first) {
        let Ok(fd) = c_int::try_from(fd) else {
            continue;
        };
        // SAFETY: as in `close_from`; a number that is not open (by now the list's own) fails with EBADF.
        unsafe { libc::close(fd) };
    }
}

/// The socket whose peer keeps this process alive, and the exit status if the peer closes it.
static LIFELINE: OnceLock<(UnixStream, u8)> = OnceLock::new();

/// Ends the process with `status` as soon as the peer of `socket` closes it, whatever the process is doing.
///
/// Uses a signal, SIGIO: a waiting thread takes longer to start than a stub NVML takes to answer (9% of an `info`), and
/// makes the whole process multithreaded.
///
/// # Errors
/// The system's.
pub(crate) fn live_as_long_as(
    socket: UnixStream,
    status: u8,
) -> Result<&'static UnixStream, Errno> {
    let (socket, _) = LIFELINE.get_or_init(|| (socket, status));
    let action = SigAction::new(
        SigHandler::Handler(check_lifeline),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler calls only poll(2) and _exit(2), which are async-signal-safe, and keeps errno.
    unsafe { sigaction(Signal::SIGIO, &action) }?;
    let (fd, pid) = (socket.as_raw_fd(), nix::unistd::getpid().as_raw());
    // SAFETY: takes no pointers. The socket is open.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETOWN, pid) })?;
    // SAFETY: as above. No other status flag is set on a socket that the standard library made.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC) })?;
    // The peer may have closed it before the signal was set up.
    check_lifeline(0);
    Ok(socket)
}

/// Runs at each SIGIO, which also reports irrelevant events such as room to write.
extern "C" fn check_lifeline(_signal: c_int) {
    let errno = Errno::last_raw();
    if let Some((socket, status)) = LIFELINE.get()
        && is_closed(socket.as_fd())
    {
        exit_now(*status);
    }
    Errno::set_raw(errno);
}

/// Returns true if the peer of a socket has closed it.
fn is_closed(socket: BorrowedFd<'_>) -> bool {
    // No events requested: POLLHUP is always reported.
    let mut ends = [PollFd::new(socket, PollFlags::empty())];
    matches!(poll(&mut ends, PollTimeout::ZERO), Ok(1..))
}

/// Unblocks all signals, and lets the process wait for its children even if it inherited an ignored SIGCHLD.
pub(crate) fn reset_signals() -> Result<(), Errno> {
    SigSet::empty().thread_set_mask()?;
    await_children()
}

/// Restores SIGCHLD's default action: an ignored SIGCHLD is inherited, and prevents waiting for children.
pub(crate) fn await_children() -> Result<(), Errno> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGCHLD, &default) }.map(drop)
}

/// Waits until a child has ended or the timeout has passed. Does not reap the child.
///
/// # Errors
/// `ENOSYS` before Linux 5.3; the system's.
pub(crate) fn wait_for_end(child: Pid, patience: Duration) -> Result<(), Errno> {
    // SAFETY: takes no pointers. A child that has not been waited for keeps its number.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.as_raw(), 0) };
    let fd = RawFd::try_from(Errno::result(fd)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call above returned a new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout).map(drop)
}

/// Prevents containers in the host's pid namespace from tracing this process: its root directory is the host's, and its
/// memory may be a copy of a privileged process's.
pub(crate) fn hide() -> Result<(), Errno> {
    prctl::set_dumpable(false)
}

/// Ends the process without running destructors or exit handlers, in particular those of foreign libraries.
pub(crate) fn exit_now(status: u8) -> ! {
    // SAFETY: _exit(2) has no requirements; it does not return.
    unsafe { libc::_exit(c_int::from(status)) }
}
