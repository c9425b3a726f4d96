//! Starts and ends the query process.

use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::choice::Start;
use super::server::serve;
use super::{MARKER, PROGRAM_NAME};
use crate::sys::fork::copy_of_this_process;
use crate::sys::process::{is_alone, wait_for_end};
use crate::sys::spawn::spawn;

/// The kernel's link to the running program, which works for renamed and deleted files too.
///
/// The new process resolves the link itself, before exec, while it still refers to the running program.
pub(super) const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// How long to wait for a killed process. One that hangs in the kernel driver cannot be killed.
const PATIENCE: Duration = Duration::from_secs(1);

/// A started process; killed and reaped when dropped.
#[derive(Debug)]
pub(super) struct Process(Option<Pid>);

impl Process {
    /// Executes a program or forks this process, with a socket as its standard input.
    ///
    /// # Errors
    /// `EAGAIN` for a fork if the process has more threads; the system's.
    pub(super) fn start(way: &Start<'_>, socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        // NVML may write to both output streams at any time.
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        let null = above_streams(null.map_err(|e| errno(&e))?.into())?;
        let environment: Vec<CString> = std::env::vars_os()
            .filter(|(name, _)| is_for_nvml(name))
            .filter_map(|(mut variable, value)| {
                variable.push("=");
                variable.push(value);
                CString::new(variable.into_vec()).ok()
            })
            .collect();
        let streams = [socket, null.as_fd(), null.as_fd()];
        let pid = match way {
            Start::Copy => {
                copy_of_this_process(streams, &environment, serve)?.ok_or(Errno::EAGAIN)?
            }
            Start::Execute(program) => {
                let program = CString::new(program.as_os_str().as_bytes());
                let program = program.map_err(|_| Errno::EINVAL)?;
                spawn(&program, &[PROGRAM_NAME, MARKER], &environment, streams)?
            }
        };
        Ok(Self(Some(pid)))
    }

    /// Describes how the process ended. Kills it if necessary.
    pub(super) fn end(&mut self) -> String {
        // Wait briefly first: a process that ended by itself should not be reported as killed.
        let ended = self.reap(PATIENCE / 10).or_else(|| {
            self.kill();
            self.reap(PATIENCE)
        });
        match ended {
            Some(status) => in_words(status),
            None => "it cannot be killed: it is stuck in the kernel driver".into(),
        }
    }

    /// Kills the process, whatever it is doing.
    pub(super) fn kill(&mut self) {
        // Reap it first if it has ended: in a program that ignores SIGCHLD, or reaps all children, its pid may have
        // been reused.
        self.reap(Duration::ZERO);
        if let Some(pid) = self.0 {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// Kills the process and reaps it, immediately or, if it hangs in the kernel, when it ends.
    pub(super) fn dismiss(&mut self) {
        self.kill();
        self.reap(PATIENCE);
        if let Some(pid) = self.0.take() {
            // The caller does not wait for it.
            log::debug!("the query process {pid} does not end");
            let _ = thread::Builder::new().spawn(move || waitpid(pid, None));
        }
    }

    /// Waits for the process to end. Returns None on timeout, or if other code reaped it.
    fn reap(&mut self, patience: Duration) -> Option<WaitStatus> {
        let pid = self.0?;
        let start = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) if start.elapsed() < patience => {
                    if wait_for_end(pid, patience).is_err() {
                        thread::sleep(pause);
                    }
                }
                Ok(WaitStatus::StillAlive) => return None,
                ended => {
                    self.0 = None;
                    return ended.ok();
                }
            }
            pause = (2 * pause).min(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// Returns a duplicate of the file that is not one of the standard streams' descriptors, which a caller gets for new
/// files if it has closed its own streams.
pub(super) fn above_streams(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    fd.try_clone().map_err(|e| errno(&e))
}

/// Returns the errno of a standard library error.
pub(super) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}

/// Returns true if a fork is equivalent to executing the program: the loader's environment variables, which a fork
/// inherits, are unset.
pub(super) fn may_copy() -> bool {
    !std::env::vars_os().any(|(name, _)| is_for_loader(&name)) && is_alone()
}

/// Returns true if NVML gets to see an environment variable. Never for the loader's.
fn is_for_nvml(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let nvml = name.windows(4).any(|part| part == b"NVML") && !name.starts_with(b"LD_");
    nvml || name.starts_with(b"CUDA_") || name.starts_with(b"NVIDIA_")
}

/// Returns true if the C library's loader reads an environment variable.
fn is_for_loader(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b"LD_") || name == b"GLIBC_TUNABLES"
}

fn in_words(status: WaitStatus) -> String {
    match status {
        WaitStatus::Exited(_, code) => format!("it ended with status {code}"),
        WaitStatus::Signaled(_, signal, _) => format!("it was killed by {signal}"),
        _ => "it ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_nvmls_alone() {
        for (name, passed) in [
            ("__NVML_USE_OLD_INIT", true),
            ("MOCK_NVML", true),
            ("CUDA_VISIBLE_DEVICES", true),
            ("NVIDIA_TF32_OVERRIDE", true),
            ("LD_PRELOAD", false),
            ("LD_NVML", false),
            ("PATH", false),
            ("NVC_DRIVER_TIMEOUT", false),
            ("GLIBC_TUNABLES", false),
            ("XCUDA_", false),
            ("", false),
        ] {
            assert_eq!(is_for_nvml(OsStr::new(name)), passed, "{name}");
        }
    }

    #[test]
    fn endings_have_words() {
        let pid = Pid::from_raw(1);
        for (status, words) in [
            (WaitStatus::Exited(pid, 65), "it ended with status 65"),
            (
                WaitStatus::Signaled(pid, Signal::SIGABRT, true),
                "it was killed by SIGABRT",
            ),
        ] {
            assert_eq!(in_words(status), words);
        }
    }
}
