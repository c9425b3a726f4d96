//! Counts a command's system calls, and reads the memory of each of its processes at its end.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

use nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Measurements of a command.
#[derive(Default)]
pub(crate) struct Trace {
    /// System calls of all its processes.
    pub(crate) calls: usize,
    /// Threads beyond the first of each process.
    pub(crate) threads: usize,
    /// Its processes in the order in which they ended: name, and peak resident memory in kB.
    pub(crate) processes: Vec<(String, u64)>,
}

/// Starts a command that is traced from its first instruction; until it is executed, the process is a shell.
fn start(command: &Command) -> io::Result<Pid> {
    let mut shell = Command::new("/bin/sh");
    let variables = command.get_envs();
    let variables = variables.filter_map(|(key, value)| Some((key, value?)));
    shell.env_clear().envs(variables).current_dir("/");
    shell.args([
        "-c",
        "echo; read -r go; exec \"$0\" \"$@\" </dev/null >/dev/null",
    ]);
    shell.arg(command.get_program()).args(command.get_args());
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    output.read_exact(&mut [0])?;
    let first = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(first, options)?;
    ptrace::interrupt(first)?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    input.write_all(b"go\n")?;
    Ok(first)
}

/// Runs a command to its end.
pub(crate) fn trace(command: &Command) -> io::Result<Trace> {
    let first = start(command)?;
    let (mut tasks, mut found) = (HashSet::from([first]), Trace::default());
    // The first process may end before its children.
    while !tasks.is_empty() {
        let (task, signal) = match waitpid(None, Some(WaitPidFlag::__WALL))? {
            WaitStatus::PtraceSyscall(task) => {
                let call = ptrace::syscall_info(task);
                let is_entry = call.is_ok_and(|call| call.op == PTRACE_SYSCALL_INFO_ENTRY);
                found.calls += usize::from(is_entry);
                (task, None)
            }
            WaitStatus::PtraceEvent(task, signal, event) => {
                tasks.insert(task);
                if event == Event::PTRACE_EVENT_EXIT as i32 {
                    found.end_of(task);
                } else if event == Event::PTRACE_EVENT_EXEC as i32 && task == first {
                    found.calls = 0; // the shell's
                }
                let is_group_stop = event == Event::PTRACE_EVENT_STOP as i32;
                (task, (!is_group_stop && event == 0).then_some(signal))
            }
            WaitStatus::Stopped(task, signal) => (task, Some(signal)),
            WaitStatus::Exited(task, code) if task == first && code != 0 => {
                return Err(io::Error::other(format!("{command:?}: exit code {code}")));
            }
            WaitStatus::Exited(task, _) | WaitStatus::Signaled(task, ..) => {
                tasks.remove(&task);
                continue;
            }
            _ => continue,
        };
        // It may have been killed; the next wait will report that.
        let _ = ptrace::syscall(task, signal);
    }
    Ok(found)
}

impl Trace {
    /// Counts a task that is about to end.
    fn end_of(&mut self, task: Pid) {
        let text = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
        let value = |key| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .map(str::trim)
        };
        if value("Tgid:") != Some(&task.to_string()) {
            self.threads += 1;
            return;
        }
        let peak = value("VmHWM:").unwrap_or_default().trim_end_matches(" kB");
        let name = value("Name:").unwrap_or_default().to_owned();
        self.processes
            .push((name, peak.parse().unwrap_or_default()));
    }
}
