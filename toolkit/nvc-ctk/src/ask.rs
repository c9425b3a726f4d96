//! Asks other programs: runs a command, with a deadline and a limit for its answer.
//!
//! A daemon that hangs must not keep its client, and so us, waiting. The client ends with us, together with its descendants.

use std::ffi::CString;
use std::io::{PipeReader, Read};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use nvc_hostfile::programs;

/// How long a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval for a running program.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a killed program may take to end. One that waits for a filesystem's server does not.
const END: Duration = Duration::from_millis(200);
/// The longest answer.
const MAX_SIZE: u64 = 4 << 20;

/// Signals that end this program, and then the program it asks, too.
const ENDING: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
];

/// Asks a program in one of the usual directories, whatever the caller's PATH is.
pub(crate) fn ask_installed(name: &str, arguments: &[&str]) -> Result<String> {
    let found = programs::find(name, &programs::directories(None));
    let found = found.as_deref().and_then(Path::to_str);
    ask(found.unwrap_or(name), arguments)
}

/// Returns what a program prints.
///
/// # Errors
/// It does not exist, fails, prints no text, or takes too long.
pub(crate) fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    ask_within(program, arguments, TIMEOUT)
}

fn ask_within(program: &str, arguments: &[&str], timeout: Duration) -> Result<String> {
    let failed = |text: String| {
        let line = [&[program], arguments].concat().join(" ");
        Error::new(ErrorKind::System, format!("{line}: {text}"))
    };
    let signals = HeldSignals::new().map_err(|errno| failed(errno.to_string()))?;
    let (group, out, err) = Group::start(program, arguments, &signals.former)
        .map_err(|errno| Error::file("execution failed", program, errno))?;
    let (out, err) = (answer(out), answer(err));
    let (mut out, mut err) = (Answer::new(out), Answer::new(err));
    let end = Instant::now() + timeout;
    let (out, err) = loop {
        let success = group.success().map_err(|errno| failed(errno.to_string()))?;
        // A descendant may still have the pipes, and only a failure needs the second one.
        let (has_out, has_err) = (out.has_come(), err.has_come());
        let is_late = Instant::now() >= end;
        match success {
            Some(true) if has_out => break (out, None),
            Some(false) if has_out && (has_err || is_late) => break (out, Some(err)),
            _ if is_late => {
                group.end();
                return Err(failed(format!("no answer within {timeout:?}")));
            }
            _ => {}
        }
        if let Some(signal) = signals.received() {
            group.end();
            drop(signals);
            let _ = raise(signal);
            return Err(failed(format!("ended by {signal}")));
        }
        thread::sleep(PAUSE);
    };
    let status = group.reap().map_err(|errno| failed(errno.to_string()))?;
    if let Some(err) = err {
        let reason = String::from_utf8_lossy(&err.bytes).into_owned();
        let reason = reason.lines().next().unwrap_or_default();
        return Err(failed(format!("{status}: {reason}")));
    }
    String::from_utf8(out.bytes).map_err(|error| failed(error.to_string()))
}

/// The signals that end this program, as long as another one runs for it: the terminal sends them only to this program's
/// process group.
struct HeldSignals {
    /// The former mask.
    former: SigSet,
    descriptor: SignalFd,
}

impl HeldSignals {
    fn new() -> nix::Result<Self> {
        // An ignored signal would be reported as well.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut held = SigSet::empty();
        for signal in ENDING {
            if !is_ignored(&status, signal) {
                held.add(signal);
            }
        }
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&held, flags)?;
        let former = held.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { former, descriptor })
    }

    fn received(&self) -> Option<Signal> {
        let found = self.descriptor.read_signal().ok()??;
        let number = i32::try_from(found.ssi_signo).ok()?;
        Signal::try_from(number).ok()
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        let _ = self.former.thread_set_mask();
    }
}

/// Returns true if a text of /proc/PID/status says that a signal is ignored.
fn is_ignored(status: &str, signal: Signal) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal as i32 - 1)) != 0)
}

/// A program in a process group of its own, so that it ends with its descendants.
struct Group(Pid);

impl Group {
    /// Starts a program with this signal mask; returns the ends of its output and of its errors, too.
    ///
    /// `Command` would pass on this thread's mask, and most programs do not reset one.
    fn start(
        program: &str,
        arguments: &[&str],
        mask: &SigSet,
    ) -> Result<(Self, PipeReader, PipeReader), Errno> {
        let text = |text: Vec<u8>| CString::new(text).map_err(|_| Errno::EINVAL);
        let pipe = || std::io::pipe().map_err(|error| errno(&error));
        let ((out, to_out), (err, to_err)) = (pipe()?, pipe()?);
        let nothing = std::fs::File::open("/dev/null").map_err(|error| errno(&error))?;
        let mut streams = PosixSpawnFileActions::init()?;
        streams.add_dup2(nothing.as_raw_fd(), 0)?;
        streams.add_dup2(to_out.as_raw_fd(), 1)?;
        streams.add_dup2(to_err.as_raw_fd(), 2)?;
        let mut attributes = PosixSpawnAttr::init()?;
        let mut defaults = SigSet::empty();
        defaults.add(Signal::SIGPIPE); // a Rust program may ignore it
        attributes.set_sigdefault(&defaults)?;
        attributes.set_sigmask(mask)?;
        attributes.set_pgroup(Pid::from_raw(0))?;
        attributes.set_flags(
            PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF
                | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
                | PosixSpawnFlags::POSIX_SPAWN_SETPGROUP,
        )?;
        let words = [&[program], arguments].concat().into_iter();
        let words = words.map(|word| text(word.into()));
        let words = words.collect::<Result<Vec<_>, _>>()?;
        let variables = std::env::vars_os().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            text(name.into_vec())
        });
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        let started = posix_spawnp(&words[0], &streams, &attributes, &words, &variables)?;
        Ok((Self(started), out, err))
    }

    /// Returns whether it succeeded; None if it still runs. It is not reaped, so that its number stays that of the group.
    fn success(&self) -> nix::Result<Option<bool>> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.0), flags)? {
            WaitStatus::StillAlive => Ok(None),
            status => Ok(Some(matches!(status, WaitStatus::Exited(_, 0)))),
        }
    }

    /// Waits until it ends, and frees its number.
    fn reap(self) -> nix::Result<ExitStatus> {
        let raw = match waitpid(self.0, None)? {
            WaitStatus::Signaled(_, signal, _) => signal as i32,
            WaitStatus::Exited(_, code) => code << 8,
            _ => 0,
        };
        Ok(ExitStatus::from_raw(raw))
    }

    /// Kills it and its descendants.
    fn end(self) {
        let _ = killpg(self.0, Signal::SIGKILL);
        let end = Instant::now() + END;
        let runs = || {
            let status = waitpid(self.0, Some(WaitPidFlag::WNOHANG));
            matches!(status, Ok(WaitStatus::StillAlive))
        };
        while runs() && Instant::now() < end {
            thread::sleep(PAUSE);
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// What a program writes to a pipe.
struct Answer {
    from: mpsc::Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    has_come: bool,
}

impl Answer {
    fn new(from: mpsc::Receiver<Vec<u8>>) -> Self {
        Self {
            from,
            bytes: Vec::new(),
            has_come: false,
        }
    }

    fn has_come(&mut self) -> bool {
        if let Ok(bytes) = self.from.try_recv() {
            self.bytes = bytes;
            self.has_come = true;
        }
        self.has_come
    }
}

/// Reads a pipe to its end, in a thread.
fn answer(pipe: PipeReader) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // More than the limit is not read, and the program then fails to write it.
        let _ = pipe.take(MAX_SIZE).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// Returns the first number of the form `1.2.3` in a text.
pub(crate) fn version_in(text: &str) -> Option<Vec<u32>> {
    let word = text
        .split([' ', '\n', ',', '-', '+', '~'])
        .map(|word| word.strip_prefix('v').unwrap_or(word))
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(
        word.split('.')
            .map_while(|part| part.parse().ok())
            .collect(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_answer() {
        assert_eq!(ask("sh", &["-c", "echo a; echo b"]).unwrap(), "a\nb\n");
        let error = ask("sh", &["-c", "echo out; echo why >&2; exit 3"]).unwrap_err();
        let text = error.message();
        assert!(text.ends_with("exit status: 3: why"), "{text}");
        let missing = ask("/no/such/program", &[]).unwrap_err().message();
        assert!(missing.contains("/no/such/program"), "{missing}");
        // A pipe that is full does not block the program's end.
        let long = ask(
            "sh",
            &["-c", "yes | head -c 300000; yes | head -c 300000 >&2"],
        )
        .unwrap();
        assert_eq!(long.len(), 300_000);
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_descendants() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("pid");
        let short = Duration::from_millis(500);
        for command in ["sleep 100 & echo $! > $0; wait", "sleep 100 & echo $! > $0"] {
            let words = ["-c", command, file.to_str().unwrap()];
            let error = ask_within("sh", &words, short).unwrap_err();
            assert!(error.message().contains("no answer within 500ms"));
            let pid = std::fs::read_to_string(&file).unwrap();
            let gone = || {
                let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
                status.map_or(true, |text| {
                    text.contains(") Z ") || !text.contains("sleep")
                })
            };
            while !gone() {
                thread::sleep(PAUSE); // a kill takes effect later
            }
        }
    }

    /// The signals that this thread holds back can still end it.
    #[test]
    fn a_program_gets_the_former_mask() {
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGUSR2);
        let former = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
        let mask = ask("grep", &["SigBlk", "/proc/self/status"]).unwrap();
        former.thread_set_mask().unwrap();
        let expected = 1_u64 << (Signal::SIGUSR2 as u64 - 1);
        assert_eq!(mask, format!("SigBlk:\t{expected:016x}\n"));
    }

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tx\nSigIgn:\t0000000000000001\n";
        assert!(is_ignored(status, Signal::SIGHUP));
        assert!(!is_ignored(status, Signal::SIGINT) && !is_ignored("", Signal::SIGHUP));
    }

    #[test]
    fn versions_are_found() {
        assert_eq!(version_in("runc version 1.1.5+ds1\n"), Some(vec![1, 1, 5]));
        assert_eq!(version_in("podman version 4.3.1"), Some(vec![4, 3, 1]));
        let containerd = "containerd containerd.io v1.6.33 d2d58213f83a";
        assert_eq!(version_in(containerd), Some(vec![1, 6, 33]));
        assert_eq!(version_in("none"), None);
    }
}
