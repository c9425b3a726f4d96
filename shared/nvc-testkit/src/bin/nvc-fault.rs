//! Runs a command and makes one of its system calls fail, or kills it there, or reports its calls.
//!
//! `nvc-fault --report FILE [--old] [--task TASK [--of CALL] --call N EFFECT] -- COMMAND...`
//!
//! EFFECT is one of `--errno NUMBER`, `--kill` and `--exchange FILE --with FILE`, which exchanges the names of two
//! files after that call, in the mount namespace of this program. With `--of`, only calls of that name count.
//!
//! With `--old` the kernel behaves as before 5.2 in ways that a system-call filter cannot emulate: statx(2) does not
//! report mounts, and clone(2) ignores `CLONE_PIDFD`.
//!
//! The exit code is the command's. [`nvc_testkit::faults`] explains the task names. Uses ptrace(2), because a
//! system-call filter cannot count, and preloading does not reach direct system calls.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, mem};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use nvc_testkit::faults::HIT;
use nvc_testkit::syscalls::{INFALLIBLE, number};

type Failure = Box<dyn std::error::Error>;

/// First argument of the process that executes the command: it waits until it is traced.
const WAIT: &str = "--wait-to-be-traced";

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let done = match words.split_first() {
        Some((first, command)) if first == WAIT => become_command(command),
        _ => Wishes::from_words(words).and_then(run),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("nvc-fault: {error}");
            ExitCode::from(127)
        }
    }
}

fn become_command(command: &[OsString]) -> Result<u8, Failure> {
    // End of input means that this process is traced.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    Err(command.args(arguments).stdin(Stdio::null()).exec().into())
}

/// The command line.
#[derive(Default)]
struct Wishes {
    report: PathBuf,
    task: String,
    /// None: count only.
    call: Option<usize>,
    /// None: kill.
    errno: Option<i32>,
    /// Two files that exchange their names instead.
    exchange: Option<PathBuf>,
    with: PathBuf,
    /// Count only this call.
    of: Option<i64>,
    old: bool,
    command: Vec<OsString>,
}

impl Wishes {
    fn from_words(words: Vec<OsString>) -> Result<Self, Failure> {
        let mut wishes = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next().filter(|word| word != "--") {
            let word = word.to_string_lossy();
            wishes.old |= word == "--old";
            if word == "--kill" || word == "--old" {
                continue;
            }
            let value = words.next().ok_or("a value is missing")?;
            let text = value.to_string_lossy();
            match &*word {
                "--report" => wishes.report = value.into(),
                "--task" => wishes.task = text.into_owned(),
                "--call" => wishes.call = Some(text.parse()?),
                "--of" => wishes.of = Some(number(&text).ok_or("an unknown call")?),
                "--exchange" => wishes.exchange = Some(value.into()),
                "--with" => wishes.with = value.into(),
                "--errno" => wishes.errno = Some(text.parse()?),
                _ => return Err(format!("{word}: not known").into()),
            }
        }
        wishes.command = words.collect();
        Ok(wishes)
    }
}

/// Starts the command, traces it to its end and writes the report.
fn run(wishes: Wishes) -> Result<u8, Failure> {
    let mut child = Command::new(env::current_exe()?)
        .arg(WAIT)
        .args(&wishes.command)
        .stdin(Stdio::piped())
        .spawn()?;
    let main = Pid::from_raw(i32::try_from(child.id())?);
    // Not EXITKILL: processes that outlive the command must stay, for the test to find.
    ptrace::seize(
        main,
        Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC,
    )?;
    drop(child.stdin.take());
    let path = wishes.report.clone();
    let mut tracer = Tracer::new(main, wishes);
    let status = tracer.trace()?;
    fs::write(path, tracer.report)?;
    Ok(status)
}

/// One traced task.
struct Task {
    name: String,
    /// Number of its calls.
    calls: usize,
    /// Number of its children by kind.
    children: HashMap<&'static str, usize>,
    /// True if the current call is the one that fails.
    failing: bool,
    /// True if names are exchanged after the current call.
    exchanging: bool,
    /// Buffer of the current statx(2).
    statx: Option<u64>,
}

struct Tracer {
    main: Pid,
    wishes: Wishes,
    tasks: HashMap<Pid, Task>,
    /// Tasks that stopped before their parent reported them.
    unborn: Vec<Pid>,
    report: String,
    infallible: Vec<i64>,
    /// True once the fault has happened.
    done: bool,
}

impl Tracer {
    fn new(main: Pid, wishes: Wishes) -> Self {
        Self {
            main,
            wishes,
            tasks: HashMap::new(),
            unborn: Vec::new(),
            report: String::new(),
            infallible: INFALLIBLE.iter().filter_map(|name| number(name)).collect(),
            done: false,
        }
    }

    /// Runs until the command has ended; returns its exit code as a shell would. Its remaining tasks then continue.
    fn trace(&mut self) -> Result<u8, Failure> {
        loop {
            let (pid, status) = match waitpid(None, Some(WaitPidFlag::__WALL))? {
                WaitStatus::Exited(pid, status) => (pid, status),
                WaitStatus::Signaled(pid, signal, _) => (pid, 128 + signal as i32),
                stopped => {
                    match self.stopped(stopped) {
                        // It was killed while it was stopped.
                        Ok(()) | Err(Errno::ESRCH) => continue,
                        Err(errno) => return Err(errno.into()),
                    }
                }
            };
            self.tasks.remove(&pid);
            if pid == self.main {
                return Ok(u8::try_from(status)?);
            }
        }
    }

    fn stopped(&mut self, status: WaitStatus) -> Result<(), Errno> {
        match status {
            WaitStatus::PtraceSyscall(pid) => self.at_call(pid),
            WaitStatus::PtraceEvent(pid, _, event) => {
                if event == libc::PTRACE_EVENT_EXEC && self.tasks.is_empty() {
                    // This program's own child may have been traced before it was fully started.
                    if !is_waiting(pid) {
                        self.tasks.insert(pid, Task::new("main".into()));
                    }
                } else if let Some(sort) = sort_of_child(event) {
                    let child = i32::try_from(ptrace::getevent(pid)?).map_err(|_| Errno::EIO)?;
                    self.born(pid, Pid::from_raw(child), sort)?;
                } else if event == libc::PTRACE_EVENT_STOP && !self.tasks.contains_key(&pid) {
                    self.unborn.push(pid);
                    return Ok(());
                }
                self.go_on(pid, None)
            }
            WaitStatus::Stopped(pid, signal) => self.go_on(pid, Some(signal)),
            _ => Ok(()),
        }
    }

    fn born(&mut self, parent: Pid, child: Pid, sort: &'static str) -> Result<(), Errno> {
        // The command's start could have children before the exec; none does.
        let parent = self.tasks.get_mut(&parent).ok_or(Errno::ESRCH)?;
        let number = parent.children.entry(sort).or_default();
        *number += 1;
        let name = match *number {
            1 => format!("{}.{sort}", parent.name),
            number => format!("{}.{sort}{number}", parent.name),
        };
        self.tasks.insert(child, Task::new(name));
        if let Some(place) = self.unborn.iter().position(|pid| *pid == child) {
            self.unborn.swap_remove(place);
            self.go_on(child, None)?;
        }
        Ok(())
    }

    /// Resumes a task until its next call, or until it ends if there is nothing to do.
    fn go_on(&self, pid: Pid, signal: Option<Signal>) -> Result<(), Errno> {
        let matters = self.tasks.get(&pid).is_some_and(|task| {
            let counts = self.wishes.call.is_none() || self.wishes.task == task.name;
            task.failing || task.exchanging || counts && !self.done
        });
        if matters {
            ptrace::syscall(pid, signal)
        } else {
            ptrace::cont(pid, signal)
        }
    }

    fn at_call(&mut self, pid: Pid) -> Result<(), Errno> {
        const ENTRY: libc::c_long = 1; // PTRACE_EVENTMSG_SYSCALL_ENTRY
        let entry = ptrace::getevent(pid)? == ENTRY;
        let task = self.tasks.get_mut(&pid).ok_or(Errno::ESRCH)?;
        if !entry {
            if task.failing {
                task.failing = false;
                registers::answer(pid, -i64::from(self.wishes.errno.unwrap_or_default()))?;
            }
            if let Some(answer) = task.statx.take() {
                registers::forget_mount(pid, answer)?;
            }
            if mem::take(&mut task.exchanging) {
                self.exchange();
            }
            return self.go_on(pid, None);
        }
        if self.wishes.old {
            task.statx = registers::make_old(pid)?;
        }
        if self.done {
            return self.go_on(pid, None);
        }
        let number = registers::call(pid)?;
        let counts = self.wishes.of.is_none_or(|of| of == number);
        if self.infallible.contains(&number) || !counts {
            return self.go_on(pid, None);
        }
        let is_it = self.wishes.call == Some(task.calls) && self.wishes.task == task.name;
        task.calls += 1;
        if self.wishes.call.is_none() {
            // Writing to memory cannot fail.
            let _ = writeln!(self.report, "{} {number}", task.name);
        }
        if !is_it {
            return self.go_on(pid, None);
        }
        self.done = true;
        let _ = writeln!(self.report, "{HIT} {number}");
        if self.wishes.exchange.is_some() {
            task.exchanging = true;
            return self.go_on(pid, None);
        }
        if self.wishes.errno.is_none() {
            // A child stopped here continues when the command and this program have ended.
            return kill(self.main, Signal::SIGKILL);
        }
        task.failing = true;
        registers::skip(pid)?;
        self.go_on(pid, None)
    }
}

impl Tracer {
    /// Exchanges the names of the two files; if they are missing, reports no hit.
    fn exchange(&mut self) {
        let Some(one) = &self.wishes.exchange else {
            return;
        };
        let flags = RenameFlags::RENAME_EXCHANGE;
        if renameat2(AT_FDCWD, one, AT_FDCWD, &self.wishes.with, flags).is_err() {
            self.report.clear();
        }
    }
}

impl Task {
    fn new(name: String) -> Self {
        Self {
            name,
            calls: 0,
            children: HashMap::new(),
            failing: false,
            exchanging: false,
            statx: None,
        }
    }
}

fn is_waiting(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    words.nth(1) == Some(WAIT.as_bytes())
}

fn sort_of_child(event: i32) -> Option<&'static str> {
    match event {
        libc::PTRACE_EVENT_CLONE => Some("thread"),
        libc::PTRACE_EVENT_VFORK => Some("program"),
        libc::PTRACE_EVENT_FORK => Some("process"),
        _ => None,
    }
}

/// Registers of a call's number and result.
#[cfg(target_arch = "x86_64")]
mod registers {
    use super::{Errno, Pid, libc, ptrace};

    pub(super) fn call(pid: Pid) -> Result<i64, Errno> {
        Ok(ptrace::getregs(pid)?.orig_rax.cast_signed())
    }

    /// Makes the kernel skip the call.
    pub(super) fn skip(pid: Pid) -> Result<(), Errno> {
        let mut registers = ptrace::getregs(pid)?;
        registers.orig_rax = u64::MAX;
        ptrace::setregs(pid, registers)
    }

    /// Clears the flag that an old kernel does not know; returns the buffer of a statx(2).
    pub(super) fn make_old(pid: Pid) -> Result<Option<u64>, Errno> {
        let mut registers = ptrace::getregs(pid)?;
        match registers.orig_rax.cast_signed() {
            libc::SYS_clone => {
                registers.rdi &= !0x1000; // CLONE_PIDFD
                ptrace::setregs(pid, registers)?;
                Ok(None)
            }
            libc::SYS_statx => Ok(Some(registers.r8)),
            _ => Ok(None),
        }
    }

    /// Removes the fields of Linux 5.8 from statx's result.
    pub(super) fn forget_mount(pid: Pid, answer: u64) -> Result<(), Errno> {
        const MNT_ID: libc::c_long = 0x1000; // in stx_mask
        const MOUNT_ROOT: libc::c_long = 0x2000; // in stx_attributes and stx_attributes_mask
        if ptrace::getregs(pid)?.rax != 0 {
            return Ok(());
        }
        for (offset, bits) in [(0, MNT_ID), (8, MOUNT_ROOT), (56, MOUNT_ROOT)] {
            let address = (answer + offset) as ptrace::AddressType;
            ptrace::write(pid, address, ptrace::read(pid, address)? & !bits)?;
        }
        Ok(())
    }

    pub(super) fn answer(pid: Pid, value: i64) -> Result<(), Errno> {
        let mut registers = ptrace::getregs(pid)?;
        registers.rax = value.cast_unsigned();
        ptrace::setregs(pid, registers)
    }
}

/// Not implemented for other architectures; the tests that need it are skipped.
#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use super::{Errno, Pid};

    pub(super) fn call(_: Pid) -> Result<i64, Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn skip(_: Pid) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn answer(_: Pid, _: i64) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn make_old(_: Pid) -> Result<Option<u64>, Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn forget_mount(_: Pid, _: u64) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}
