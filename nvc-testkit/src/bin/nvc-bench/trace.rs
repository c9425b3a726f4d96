//! Follows a command with ptrace and counts: its processes, threads and system calls, and the memory of each process.
//!
//! Memory of a process shrinks only in a system call. So it is read at the start of every one, and the largest value is
//! the peak. (The kernel's own peak, VmHWM, is off by some hundred kB for small processes.) Times of such a run mean
//! nothing.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

use nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What a command did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// System calls of all its processes.
    pub(crate) calls: u64,
    /// Threads beyond the first of each process.
    pub(crate) threads: u64,
    /// Its processes, in the order in which they were started.
    pub(crate) processes: Vec<Process>,
    /// The most private memory that all its processes had at one time, kB.
    pub(crate) private: u64,
    /// Whether it succeeded.
    pub(crate) succeeded: bool,
}

/// A process and what it ran last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Process {
    /// Its name at its end.
    pub(crate) name: String,
    /// The most that was resident, pages of files included, kB.
    pub(crate) peak: u64,
    /// The most that was resident and its own alone, kB.
    pub(crate) private: u64,
    /// What was resident at its end of files whose names begin with libnvidia, kB.
    pub(crate) driver: u64,
    /// Private memory now, kB.
    now: u64,
    /// Whether its memory is its own. Before it executes a program it may be its parent's, and count there.
    separate: bool,
}

/// Whether memory is looked at, which makes the run ten times as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Watched,
    Ignored,
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started or followed.
pub(crate) fn trace(command: &Command, memory: Memory) -> io::Result<Trace> {
    // The shell waits until it is followed, and then becomes the command. It says when it waits, since its own execution
    // is not quite over when it has been started.
    let script = "echo waiting; read -r go; exec \"$0\" \"$@\" </dev/null >/dev/null";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.env_clear().current_dir("/");
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(key, value);
        }
    }
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.stderr(Stdio::null()).spawn()?;
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    output.read_exact(&mut [0; "waiting\n".len()])?;
    let first = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(first, options)?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    input.write_all(b"go\n")?;
    let follower = Follower {
        tasks: HashMap::new(),
        copies: HashSet::new(),
        trace: Trace::default(),
        memory,
    };
    follower.follow(first)
}

struct Follower {
    /// Threads, each with the index of its process.
    tasks: HashMap<Pid, usize>,
    /// Copies of processes, with memory of their own from the start.
    copies: HashSet<Pid>,
    trace: Trace,
    memory: Memory,
}

impl Follower {
    fn follow(mut self, first: Pid) -> io::Result<Trace> {
        // The first may end before others that it started; and it can be reaped only after all its threads have been, so
        // never wait for it alone.
        let mut ended = false;
        while !(ended && self.tasks.is_empty()) {
            let (task, signal) = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Err(errno) => return Err(errno.into()),
                Ok(WaitStatus::PtraceSyscall(task)) => {
                    self.system_call(task);
                    (task, None)
                }
                Ok(WaitStatus::PtraceEvent(task, _, event)) => {
                    self.event(task, event);
                    (task, None)
                }
                Ok(WaitStatus::Stopped(task, signal)) => (task, Some(signal)),
                Ok(WaitStatus::Exited(task, code)) if task == first => {
                    self.trace.succeeded = code == 0;
                    ended = true;
                    continue;
                }
                Ok(WaitStatus::Signaled(task, ..)) if task == first => {
                    ended = true;
                    continue;
                }
                Ok(_) => continue,
            };
            // It may have been killed meanwhile; the next wait tells.
            let _ = ptrace::syscall(task, signal);
        }
        Ok(self.trace)
    }

    /// Counts entries only, since not every call returns.
    fn system_call(&mut self, task: Pid) {
        let info = ptrace::syscall_info(task);
        let entered = info.is_ok_and(|info| info.op == PTRACE_SYSCALL_INFO_ENTRY);
        if let (true, Some(&process)) = (entered, self.tasks.get(&task)) {
            self.trace.calls += 1;
            self.weigh(task, process);
        }
    }

    fn event(&mut self, task: Pid, event: i32) {
        if event == Event::PTRACE_EVENT_EXEC as i32 {
            // The command itself begins here; what the shell did does not count.
            let process = match self.tasks.get(&task) {
                Some(process) => *process,
                None => self.add(task),
            };
            self.process(process).separate = true;
        } else if event == Event::PTRACE_EVENT_FORK as i32 {
            // The copy may have been met already, or not yet.
            let copy = ptrace::getevent(task)
                .ok()
                .and_then(|id| i32::try_from(id).ok());
            if let Some(copy) = copy.map(Pid::from_raw) {
                self.copies.insert(copy);
                if let Some(process) = self.tasks.get(&copy).copied() {
                    self.process(process).separate = true;
                }
            }
        } else if event == Event::PTRACE_EVENT_EXIT as i32 {
            self.end(task);
        } else if event == Event::PTRACE_EVENT_STOP as i32 && !self.tasks.contains_key(&task) {
            self.begin(task);
        }
    }

    /// Adds a new thread or process.
    fn begin(&mut self, task: Pid) {
        let leader = status(task, "Tgid:").and_then(|id| i32::try_from(id).ok());
        match leader.and_then(|leader| self.tasks.get(&Pid::from_raw(leader))) {
            Some(&process) => {
                self.trace.threads += 1;
                self.tasks.insert(task, process);
            }
            None => {
                self.add(task);
            }
        }
    }

    fn add(&mut self, task: Pid) -> usize {
        let index = self.trace.processes.len();
        self.tasks.insert(task, index);
        self.trace.processes.push(Process {
            separate: self.copies.contains(&task),
            ..Process::default()
        });
        index
    }

    /// Notes the private memory of a process, and of all together.
    fn weigh(&mut self, task: Pid, process: usize) {
        if self.memory == Memory::Ignored || !self.process(process).separate {
            return;
        }
        let rollup = fs::read_to_string(format!("/proc/{task}/smaps_rollup")).unwrap_or_default();
        let private = number(&rollup, "Private_Clean:") + number(&rollup, "Private_Dirty:");
        let process = self.process(process);
        process.now = private;
        process.peak = process.peak.max(number(&rollup, "Rss:"));
        process.private = process.private.max(private);
        let together = self.trace.processes.iter().map(|process| process.now).sum();
        self.trace.private = self.trace.private.max(together);
    }

    fn end(&mut self, task: Pid) {
        let Some(process) = self.tasks.get(&task).copied() else {
            return;
        };
        self.weigh(task, process);
        self.tasks.remove(&task);
        if self.tasks.values().any(|other| *other == process) {
            return;
        }
        let name = fs::read_to_string(format!("/proc/{task}/comm")).unwrap_or_default();
        let driver = resident_of(task, "/libnvidia");
        let process = self.process(process);
        process.now = 0;
        name.trim_end().clone_into(&mut process.name);
        process.driver = driver;
    }

    fn process(&mut self, index: usize) -> &mut Process {
        &mut self.trace.processes[index]
    }
}

/// A number of `/proc/PID/status`.
fn status(task: Pid, key: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    text.contains(key).then(|| number(&text, key))
}

/// The sum of the numbers in lines that begin with `key`.
fn number(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(key)?.split_whitespace().next())
        .filter_map(|number| number.parse::<u64>().ok())
        .sum()
}

/// How much of files with this in their paths is resident, kB.
fn resident_of(task: Pid, part: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{task}/smaps")).unwrap_or_default();
    let mut counts = false;
    let mut sum = 0;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if !first.ends_with(':') {
            counts = line.contains(part);
        } else if counts {
            sum += number(line, "Rss:");
        }
    }
    sum
}
