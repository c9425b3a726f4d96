//! Runs a command and makes one of its system calls fail, or kills it there; or says which calls it makes.
//!
//! `nvc-fault --report FILE [--old] [--task TASK [--of CALL] --call N EFFECT] -- COMMAND...`
//!
//! EFFECT is one of `--errno NUMBER`, `--kill` and `--exchange FILE --with FILE`, which exchanges the names of two files
//! when that call has been made, in the mount namespace of this program. With `--of`, only calls of that name count.
//!
//! With `--old` the kernel answers as before 5.2 where a system-call filter cannot make it: statx(2) does not tell
//! about mounts, and clone(2) takes no notice of `CLONE_PIDFD`.
//!
//! The exit status is the command's. The tasks' names are explained in [`nvc_testkit::faults`]. By ptrace(2), since a
//! system-call filter cannot count, and preloading does not reach the calls that a program makes itself.

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

/// First argument of the process that becomes the command: it waits until it is traced.
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
    // The end of the input says that this process is traced.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    Err(command.args(arguments).stdin(Stdio::null()).exec().into())
}

/// What is asked for on the command line.
#[derive(Default)]
struct Wishes {
    report: PathBuf,
    task: String,
    /// None: only count.
    call: Option<usize>,
    /// None: kill.
    errno: Option<i32>,
    /// Two files that exchange their names instead.
    exchange: Option<PathBuf>,
    with: PathBuf,
    /// The only call that counts.
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
    // Not EXITKILL: what survives the command's end must be left alone, for the test to find.
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
    /// How many it has made.
    calls: usize,
    /// How many children of each sort it has.
    children: HashMap<&'static str, usize>,
    /// Whether the call in progress is the one that fails.
    failing: bool,
    /// Whether names are exchanged when the call in progress has been made.
    exchanging: bool,
    /// Where statx(2), in progress, writes its answer.
    statx: Option<u64>,
}

struct Tracer {
    main: Pid,
    wishes: Wishes,
    tasks: HashMap<Pid, Task>,
    /// Tasks that stopped before their parent said that it made them.
    unborn: Vec<Pid>,
    report: String,
    infallible: Vec<i64>,
    /// Whether the fault has happened.
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

    /// Until the command has ended; gives its exit status as a shell would. What is left of its tasks then goes on.
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
                    // This program, waiting, may have been traced before it was all there itself.
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
        // The command's own start may make children before it is executed; none does.
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

    /// Lets a task run to its next call, or on where nothing is to happen.
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
            // Writing to memory does not fail.
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
            // A child that stands here goes on when the command is gone, and with it this program.
            return kill(self.main, Signal::SIGKILL);
        }
        task.failing = true;
        registers::skip(pid)?;
        self.go_on(pid, None)
    }
}

impl Tracer {
    /// Exchanges the names of the two files; without them nothing is reported as hit.
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

/// Where the kernel has a call's number and its answer.
#[cfg(target_arch = "x86_64")]
mod registers {
    use super::{Errno, Pid, libc, ptrace};

    pub(super) fn call(pid: Pid) -> Result<i64, Errno> {
        Ok(ptrace::getregs(pid)?.orig_rax.cast_signed())
    }

    /// Makes the kernel do nothing.
    pub(super) fn skip(pid: Pid) -> Result<(), Errno> {
        let mut registers = ptrace::getregs(pid)?;
        registers.orig_rax = u64::MAX;
        ptrace::setregs(pid, registers)
    }

    /// Takes the flag away that an old kernel does not know; where statx(2) will write.
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

    /// Takes out of statx's answer what came with Linux 5.8.
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

/// Nobody has needed it on other architectures so far; the tests that do say that they cannot run.
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
