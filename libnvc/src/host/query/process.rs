//! Starts and ends the query process, from the asking side.
//!
//! Starting is the standard library's posix_spawn(3): it borrows the caller's memory until the new program runs
//! instead of copying it, and runs nothing between that is not safe in a multi-threaded process. So no code of ours may
//! run there either; what there is to set up, the program does itself.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::{MARKER, PROGRAM_NAME};

/// How long a process that was told to end is waited for. One that sits in the kernel driver cannot be killed.
const PATIENCE: Duration = Duration::from_secs(1);

/// A started process; ended and reaped when dropped.
#[derive(Debug)]
pub(super) struct Process(Option<Child>);

impl Process {
    /// Executes a program with a socket as its standard input.
    pub(super) fn start(program: &Path, socket: OwnedFd) -> Result<Self, Errno> {
        let spawn = || {
            // NVML writes to both when it feels like it.
            let null = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/null")?;
            Command::new(program)
                .arg0(PROGRAM_NAME)
                .arg(MARKER)
                .env_clear()
                .envs(std::env::vars_os().filter(|(name, _)| is_for_nvml(name)))
                .stdin(socket)
                .stdout(null.try_clone()?)
                .stderr(Stdio::from(null))
                .spawn()
        };
        spawn()
            .map(|child| Self(Some(child)))
            .map_err(|error: io::Error| error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw))
    }

    /// How the process ended, in words. It is ended if need be.
    pub(super) fn end(&mut self) -> String {
        // A process that ended by itself shall not be said to have been killed.
        let ended = self.reap(PATIENCE / 10).or_else(|| {
            self.kill();
            self.reap(PATIENCE)
        });
        match ended {
            Some(status) => in_words(status),
            None => "it cannot be killed: it is stuck in the kernel driver".into(),
        }
    }

    /// Ends the process, whatever it is doing.
    pub(super) fn kill(&mut self) {
        if let Some(child) = &mut self.0 {
            // Asked first whether it is still there: in a program that ignores SIGCHLD, or reaps all children, its
            // number may be another's by now.
            if matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
            }
        }
    }

    /// Waits for the process to end. None if it did not in time, and if somebody else reaped it.
    fn reap(&mut self, patience: Duration) -> Option<ExitStatus> {
        let child = self.0.as_mut()?;
        let start = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    self.0 = None;
                    return Some(status);
                }
                Ok(None) if start.elapsed() < patience => thread::sleep(pause),
                Ok(None) => return None,
                Err(_) => {
                    self.0 = None;
                    return None;
                }
            }
            pause = (2 * pause).min(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.reap(PATIENCE);
        if let Some(mut child) = self.0.take() {
            // Stuck in the kernel. The caller is not held up; if it stays, the process is reaped when it ends.
            log::debug!("the query process does not end");
            let _ = thread::Builder::new().spawn(move || child.wait());
        }
    }
}

/// Whether NVML gets to see an environment variable. Never those of the loader.
fn is_for_nvml(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let nvml = name.windows(4).any(|part| part == b"NVML") && !name.starts_with(b"LD_");
    nvml || name.starts_with(b"CUDA_") || name.starts_with(b"NVIDIA_")
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("it was killed by {}", signal.as_str()),
            Err(_) => format!("it was killed by signal {number}"),
        },
        (None, None) => "it ended".into(),
    }
}

/// The program that is running, whatever became of its name: the kernel's link to it, good for deleted files too.
///
/// The new process looks the link up itself, before it has become another program.
pub(super) fn this_executable() -> OsString {
    "/proc/self/exe".into()
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
        for (raw, words) in [
            (0, "it ended with status 0"),
            (65 << 8, "it ended with status 65"),
            (6, "it was killed by SIGABRT"),
            (40, "it was killed by signal 40"),
        ] {
            assert_eq!(in_words(ExitStatus::from_raw(raw)), words);
        }
    }
}
