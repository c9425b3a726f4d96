//! Waits for ldconfig to end, reads its output, and kills it at its deadline.
//!
//! The end is determined by the process rather than by the end of its output: a child of another thread of the caller
//! may hold a copy of the pipe.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

use super::output::Output;
use crate::sys::sandbox::SandboxedProcess;

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Termination {
    Exited(i32),
    Signalled(i32),
    TimedOut,
    /// Reaped by other code, or by the system.
    Lost(Errno),
}

/// Time for a killed process to end; one in the middle of I/O to dead storage may never end.
const GRACE: Duration = Duration::from_secs(5);
/// Polling interval for a process without a pidfd, before Linux 5.2.
const INTERVAL: Duration = Duration::from_millis(5);
/// Limit of bytes read after the end: more than the largest pipe that users can create.
const REST: usize = 2 << 20;

/// Waits for the end of a process; kills it at the deadline.
pub(super) fn watch(
    process: &SandboxedProcess,
    output: Option<OwnedFd>,
    mut until: Instant,
) -> (Termination, Output) {
    let mut pipe = output.map(File::from);
    let mut said = Output::default();
    let mut killed = false;
    let ended = loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            if killed {
                break Termination::TimedOut;
            }
            // It has not been reaped, so the pid is still its own. Its whole pid namespace ends with it.
            let _ = kill(process.pid, Signal::SIGKILL);
            killed = true;
            until = Instant::now() + GRACE;
            continue;
        }
        if wait_for_news(process, pipe.as_ref(), left) && feed(&mut pipe, &mut said) == 0 {
            pipe = None;
        }
        if let Some(ended) = has_ended(process) {
            break if killed { Termination::TimedOut } else { ended };
        }
    };
    let mut rest = 0;
    while rest < REST && pipe.as_ref().is_some_and(|pipe| is_readable(pipe.as_fd())) {
        match feed(&mut pipe, &mut said) {
            0 => break,
            length => rest += length,
        }
    }
    said.finish();
    (ended, said)
}

/// Kills a process.
pub(super) fn end(process: &SandboxedProcess) {
    watch(process, None, Instant::now());
}

/// Waits until the process prints or ends, or for a timeout; returns true if there is output, or its end.
fn wait_for_news(process: &SandboxedProcess, pipe: Option<&File>, longest: Duration) -> bool {
    let longest = match process.fd {
        Some(_) => longest,
        None => longest.min(INTERVAL),
    };
    // Rounded up, to include the last millisecond.
    let timeout = PollTimeout::try_from(longest + Duration::from_millis(1));
    let timeout = timeout.unwrap_or(PollTimeout::MAX);
    let output = pipe.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
    let end = process.fd.as_ref();
    let end = end.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
    let mut polled: Vec<PollFd<'_>> = output.into_iter().chain(end).collect();
    let news = poll(&mut polled, timeout).is_ok();
    news && pipe.is_some() && polled.first().and_then(PollFd::any) == Some(true)
}

/// Reads once; returns 0 at the end of the output.
fn feed(pipe: &mut Option<File>, said: &mut Output) -> usize {
    let mut buffer = [0; 16 << 10];
    let length = match pipe.as_mut().map(|pipe| pipe.read(&mut buffer)) {
        Some(Ok(length)) => length,
        None | Some(Err(_)) => 0,
    };
    said.feed(buffer.get(..length).unwrap_or_default());
    length
}

fn has_ended(process: &SandboxedProcess) -> Option<Termination> {
    let options = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
    match waitpid(process.pid, Some(options)) {
        Ok(WaitStatus::Exited(_, code)) => Some(Termination::Exited(code)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(Termination::Signalled(signal as i32)),
        Ok(_) | Err(Errno::EINTR) => None,
        Err(errno) => Some(Termination::Lost(errno)),
    }
}

/// Returns true if a read would not block.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
}
