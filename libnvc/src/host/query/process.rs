//! Starts and ends the query process.

use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{AccessFlags, Pid, access};

use super::choice::{ProcessContext, Start, choose};
use super::server::{refuse_if_asked, serve};
use super::{CREATION, MARKER, PROGRAM_NAME};
use crate::caller;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::host::Identity;
use crate::sys::descriptors::above_streams;
use crate::sys::fork::copy_of_this_process;
use crate::sys::process::{is_alone, wait_for_end};
use crate::sys::spawn::spawn;

/// The kernel's link to the running program, which works for renamed and deleted files too.
///
/// The new process resolves the link itself, before exec, while it still refers to the running program.
const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// How long to wait for a killed process. One that hangs in the kernel driver cannot be killed.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The program that the process runs. An executed program must first call [`serve_if_asked`](super::serve_if_asked).
#[derive(Clone, Debug)]
pub enum QueryProgram {
    /// The running program, executed again.
    ThisExecutable,
    /// Like `ThisExecutable`, but forks if the process has a single thread and no environment variable addresses the
    /// loader, which takes half the time. For a program's `main` that holds no secrets from NVML yet.
    ThisProcess,
    /// An absolute path, or the error of looking for it, which the query then returns.
    Path(Result<PathBuf>),
    /// A library's helper program, or the error of looking for it. If it is missing, or the caller's bounding set would
    /// leave it without the capabilities that it needs, a fork replaces it, provided the process has one thread.
    Helper(Result<PathBuf>),
}

impl QueryProgram {
    /// Returns the first of some directories' programs of this name that `check` accepts, for a program or a library
    /// that has its own.
    ///
    /// # Errors
    /// `process creation failed: <name>: in none of <directories>`, and after `; <path> does not count: ` why not.
    pub fn find(
        name: &str,
        directories: &[PathBuf],
        check: impl Fn(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let mut cause = String::from("in none of ");
        let mut skipped = String::new();
        for (place, directory) in directories.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            cause += &format!("{comma}{}", directory.display());
            let path = directory.join(name);
            if !path.is_file() || access(&path, AccessFlags::X_OK).is_err() {
                continue;
            }
            match check(&path) {
                Ok(()) => return Ok(path),
                Err(error) => {
                    let (path, why) = (path.display(), error.message());
                    skipped += &format!("; {path} does not count: {why}");
                }
            }
        }
        let error = Error::new(ErrorKind::DriverUnavailable, CREATION).of(name);
        Err(error.with_cause(cause + &skipped))
    }
}

/// A query process that has not received a request, or the reason why it could not be started, which the query returns.
/// Dropping it ends the process and reaps it.
#[derive(Debug)]
pub struct QueryProcess(Result<Started>);

/// A started process.
#[derive(Debug)]
pub(super) struct Started {
    // Declared first, so that it is closed before the wait: closing it ends the process.
    pub(super) socket: UnixStream,
    pub(super) process: Child,
    pub(super) program: QueryProgram,
}

impl QueryProcess {
    /// Starts the program, which initialises itself while the caller prepares the request.
    ///
    /// The process needs SYS_CHROOT (for a driver root other than `/`), SETUID and SETGID after its start: start it
    /// while the bounding set still has them, or with them as ambient capabilities. It is killed when the *thread* that
    /// calls this ends, so call it from a thread that stays until the answers have arrived.
    ///
    /// The query's error is `process creation failed: <cause>` if it cannot be started, also if this process was started
    /// for a query itself. It is kept until then because errors come in upstream's order.
    pub fn start(program: &QueryProgram) -> Self {
        // No process has that root or these users, so every capability counts as needed.
        let everything = ProcessContext {
            root: Path::new(""),
            user: Identity {
                uid: u32::MAX,
                gid: u32::MAX,
            },
        };
        Self::start_for(program, &everything)
    }

    /// Starts the program when the required root and identity are known.
    pub(crate) fn start_for(program: &QueryProgram, wanted: &ProcessContext<'_>) -> Self {
        Self(Started::start(program, wanted))
    }

    /// Returns the process.
    ///
    /// # Errors
    /// It could not be started.
    pub(super) fn started(self) -> Result<Started> {
        self.0
    }
}

impl Started {
    fn start(program: &QueryProgram, wanted: &ProcessContext<'_>) -> Result<Self> {
        refuse_if_asked()?;
        let this = Path::new(THIS_EXECUTABLE);
        let way = match program {
            QueryProgram::ThisProcess if may_copy() => Start::Copy,
            QueryProgram::ThisProcess | QueryProgram::ThisExecutable => Start::Execute(this),
            QueryProgram::Path(path) => Start::Execute(path.as_deref().map_err(Clone::clone)?),
            QueryProgram::Helper(helper) => choose(helper, wanted)?,
        };
        let (socket, theirs) = UnixStream::pair().map_err(|e| not_created(errno_of(&e)))?;
        let theirs = above_streams(theirs.into()).map_err(not_created)?;
        let process = Child::start(&way, theirs.as_fd()).map_err(|errno| match way {
            Start::Execute(path) => {
                not_created(errno).hint(format!("the query program is {}", path.display()))
            }
            Start::Copy => not_created(errno),
        })?;
        Ok(Self {
            socket,
            process,
            program: program.clone(),
        })
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessEnd {
    /// For a message: "it was killed by SIGKILL".
    pub(super) how: String,
    /// By a signal, perhaps of another process.
    pub(super) is_by_signal: bool,
}

impl From<WaitStatus> for ProcessEnd {
    fn from(status: WaitStatus) -> Self {
        Self {
            how: in_words(status),
            is_by_signal: matches!(status, WaitStatus::Signaled(..)),
        }
    }
}

/// A started process; killed and reaped when dropped.
#[derive(Debug)]
pub(super) struct Child(Option<Pid>);

impl Child {
    /// Executes a program or forks this process, with a socket as its standard input.
    ///
    /// # Errors
    /// `EAGAIN` for a fork if the process has more threads; the system's.
    pub(super) fn start(way: &Start<'_>, socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        // NVML may write to both output streams at any time.
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        let null = above_streams(null.map_err(|e| errno_of(&e))?.into())?;
        let environment: Vec<CString> = std::env::vars_os()
            .filter(|(name, _)| is_for_nvml(name, caller::is_trusted()))
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

    /// Returns a placeholder for a process that has ended.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Describes how the process ended. Kills it if necessary.
    pub(super) fn end(&mut self) -> ProcessEnd {
        // Wait briefly first: a process that ended by itself should not be reported as killed.
        if let Some(status) = self.reap(TIMEOUT / 10) {
            return status.into();
        }
        if self.0.is_none() {
            // The calling program waits for all its children, so nothing is known.
            return ProcessEnd {
                how: "it ended".into(),
                is_by_signal: true,
            };
        }
        self.kill();
        let how = self.reap(TIMEOUT).map_or_else(
            || "it cannot be killed: it is stuck in the kernel driver".into(),
            in_words,
        );
        ProcessEnd {
            how,
            is_by_signal: false,
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
        self.reap(TIMEOUT);
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

impl Drop for Child {
    fn drop(&mut self) {
        self.dismiss();
    }
}

pub(super) fn not_created(errno: Errno) -> Error {
    Error::system(CREATION, errno).with_kind(ErrorKind::DriverUnavailable)
}

/// Returns true if a fork is equivalent to executing the program: the loader's environment variables, which a fork
/// inherits, are unset.
fn may_copy() -> bool {
    !std::env::vars_os().any(|(name, _)| is_for_loader(&name)) && is_alone()
}

/// Returns true if a variable is passed to NVML: none of an image, which could name files of the host in it, and never one
/// of the loader.
fn is_for_nvml(name: &OsStr, is_trusted: bool) -> bool {
    let name = name.as_bytes();
    let has = |word: &[u8]| name.windows(word.len()).any(|part| part == word);
    let is_library = (has(b"NVML") || has(b"DXCORE")) && !name.starts_with(b"LD_");
    is_trusted && (is_library || name.starts_with(b"CUDA_") || name.starts_with(b"NVIDIA_"))
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
            ("MOCK_DXCORE", true),
            ("LD_DXCORE", false),
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
            assert_eq!(is_for_nvml(OsStr::new(name), true), passed, "{name}");
            assert!(!is_for_nvml(OsStr::new(name), false), "{name}");
        }
    }

    /// A program whose SIGCHLD handler waits for every child.
    #[test]
    fn a_process_that_others_have_waited_for() {
        let mut program = std::process::Command::new("true")
            .spawn()
            .expect("a process");
        let pid = Pid::from_raw(i32::try_from(program.id()).expect("a pid"));
        program.wait().expect("its status");
        let mut child = Child(Some(pid));
        let ending = ProcessEnd {
            how: "it ended".into(),
            is_by_signal: true,
        };
        assert_eq!(child.end(), ending);
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
