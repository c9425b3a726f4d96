//! Serialises configurations of one container.
//!
//! Two at the same time would not see each other's mounts, would replace each other's device rules, and would undo each
//! other's work. The lock is on a file of the container's process in the caller's procfs that only processes permitted
//! to trace it can open: the container, whose own procfs has different files, and other users cannot block us. A
//! container with the caller's procfs as a volume can open it too, so the lock counts only while a process that could
//! configure containers holds it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::container::ContainerProcess;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::files::{try_lock, unlock};

mod holder;

/// Longest wait for the lock: more than the sum of all deadlines of a configuration.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Interval of checking the holder.
const HOLDER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of checks in a row without a holder that could be a configuration, after which the lock is ignored. Not a time:
/// on a busy machine a single check can come late, just when the holder has ended.
const MAX_UNFIT_HOLDERS: u32 = 5;

/// The held lock, released on drop and when the process ends.
#[derive(Debug)]
pub(super) struct ContainerLock {
    lock: Option<OwnedFd>,
}

impl ContainerLock {
    /// Waits for the lock. If the file cannot be opened, in a container that restricts tracing, continues unlocked.
    pub(super) fn take(process: &ContainerProcess) -> Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let (name, found) = match process.directory() {
            Some(directory) => (
                process.path().join("environ"),
                openat(directory, "environ", flags, Mode::empty()),
            ),
            // The root itself, which only processes already in the namespace can open.
            None => (
                process.path().join("root"),
                openat(process.root(), ".", flags, Mode::empty()),
            ),
        };
        let file = match found {
            Ok(fd) => fd,
            Err(errno) => {
                log::debug!(
                    "not locking the container: open {}: {errno}",
                    name.display()
                );
                return Ok(Self { lock: None });
            }
        };
        let begin = Instant::now();
        let (mut looked, mut unfit) = (begin, 0);
        loop {
            match try_lock(&file) {
                Ok(()) => return Ok(Self { lock: Some(file) }),
                Err(Errno::EWOULDBLOCK) => {}
                Err(errno) => {
                    log::debug!(
                        "not locking the container: flock {}: {errno}",
                        name.display()
                    );
                    return Ok(Self { lock: None });
                }
            }
            if looked.elapsed() > HOLDER_CHECK_INTERVAL {
                looked = Instant::now();
                unfit = if holder::may_configure(&file) {
                    0
                } else {
                    unfit + 1
                };
                if unfit >= MAX_UNFIT_HOLDERS {
                    log::warn!(
                        "not waiting for {}: it is locked by a process that cannot be configuring the container",
                        name.display()
                    );
                    return Ok(Self { lock: None });
                }
            }
            if begin.elapsed() > TIMEOUT {
                let text = "another process is still configuring the container";
                return Err(Error::new(ErrorKind::TimedOut, text).hint(format!(
                    "lslocks lists the process that holds {}",
                    name.display()
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ContainerLock {
    fn drop(&mut self) {
        // A child that is about to execute a program has the file open too. If this fails, the lock ends with the
        // process.
        let _ = self.lock.as_ref().map(unlock);
    }
}
