//! Traces a command with ptrace: counts its processes, threads and system calls, and measures the memory of each
//! process.
//!
//! A process's memory shrinks only in a system call, so the maximum of the values at the start of every call is the
//! peak. (The kernel's own peak, VmHWM, is off by some hundred kB for small processes.) The run times are meaningless.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

use nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Measurements of a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// System calls of all its processes.
    pub(crate) calls: u64,
    /// Threads beyond the first of each process.
    pub(crate) threads: u64,
    /// Its processes, in starting order.
    pub(crate) processes: Vec<Process>,
    /// Peak of the private memory of all its processes together, kB.
    pub(crate) private: u64,
    /// True if it succeeded.
    pub(crate) succeeded: bool,
}

/// A process with the name of its last program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Process {
    /// Its last name.
    pub(crate) name: String,
    /// Peak resident memory including file pages, kB.
    pub(crate) peak: u64,
    /// Peak private resident memory, kB.
    pub(crate) private: u64,
    /// Resident memory at its end of files whose names begin with libnvidia, kB.
    pub(crate) driver: u64,
    /// Current private memory, kB.
    now: u64,
    /// True if its memory is not its parent's, which it may share before exec; shared memory counts there.
    separate: bool,
}

/// Selects memory measurement, which makes the run ten times slower.
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
    // The shell waits until it is traced, and then executes the command. It reports when it is waiting, because its own
    // exec may not be complete when spawn returns.
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
    /// Threads, each with its process's index.
    tasks: HashMap<Pid, usize>,
    /// Forked processes, with their own memory from the start.
    copies: HashSet<Pid>,
    trace: Trace,
    memory: Memory,
}

impl Follower {
    fn follow(mut self, first: Pid) -> io::Result<Trace> {
        // The first process may end before its children, and it can be reaped only after its threads, so never wait for
        // it alone.
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
            // It may have been killed; the next wait will report that.
            let _ = ptrace::syscall(task, signal);
        }
        Ok(self.trace)
    }

    /// Counts entries only, because not every call returns.
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
            // The command starts here; the shell's calls do not count.
            let process = match self.tasks.get(&task) {
                Some(process) => *process,
                None => self.add(task),
            };
            self.process(process).separate = true;
        } else if event == Event::PTRACE_EVENT_FORK as i32 {
            // The fork's stop may come before or after this event.
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

    /// Records the private memory of a process, and of all together.
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

/// Reads a number from `/proc/PID/status`.
fn status(task: Pid, key: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    text.contains(key).then(|| number(&text, key))
}

/// Sums the numbers on lines that begin with `key`.
fn number(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(key)?.split_whitespace().next())
        .filter_map(|number| number.parse::<u64>().ok())
        .sum()
}

/// Returns the resident memory of files with this in their paths, kB.
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
