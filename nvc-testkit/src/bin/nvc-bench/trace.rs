//! Traces a command: counts its system calls with strace(1), and reads the memory of each process at its end.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::{fs, iter};

use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use nvc_testkit::machine::Scratch;

/// Measurements of a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// System calls of all its processes.
    pub(crate) calls: usize,
    /// Threads beyond the first of each process.
    pub(crate) threads: usize,
    /// Its processes in the order in which they ended: name, and peak resident memory in kB.
    pub(crate) processes: Vec<(String, u64)>,
}

/// Runs two equivalent commands to their ends: one to count, one to measure memory.
///
/// # Errors
/// They cannot be traced, or fail.
pub(crate) fn trace(counted: &Command, weighed: &Command) -> io::Result<Trace> {
    let (calls, threads) = count(counted)?;
    Ok(Trace {
        calls,
        threads,
        processes: weigh(weighed)?,
    })
}

/// Returns the numbers of system calls, and of threads beyond the first of each process.
fn count(command: &Command) -> io::Result<(usize, usize)> {
    let scratch = Scratch::new()?;
    let list = scratch.join("calls");
    let mut strace = like(command, Command::new("strace"));
    strace.args(["-f", "-qq", "-e", "signal=none", "-o"]);
    strace.arg(&list).arg("--");
    strace.arg(command.get_program()).args(command.get_args());
    let output = strace.output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{strace:?}: {text}")));
    }
    let text = fs::read(&list)?;
    let text = String::from_utf8_lossy(&text);
    let calls = text.lines().filter_map(|line| line.split_once(' '));
    // Skips resumed halves of interrupted calls, and exits.
    let calls = calls.filter(|(_, call)| !call.trim_start().starts_with(['<', '+', '-']));
    let threads = calls
        .clone()
        .filter(|(_, call)| call.contains("CLONE_THREAD"));
    // strace made the exec of the command.
    Ok((calls.count() - 1, threads.count()))
}

/// Returns the processes of a command with their peak memory.
fn weigh(command: &Command) -> io::Result<Vec<(String, u64)>> {
    // The shell waits until it is traced, and then executes the command.
    let mut shell = like(command, Command::new("/bin/sh"));
    shell.args([
        "-c",
        "echo waiting; read -r go; exec \"$0\" \"$@\" </dev/null >/dev/null",
    ]);
    shell.arg(command.get_program()).args(command.get_args());
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    output.read_exact(&mut [0; "waiting\n".len()])?;
    let first = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let options = Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(first, options)?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    input.write_all(b"go\n")?;
    let (mut tasks, mut ended) = (HashSet::from([first]), Vec::new());
    // The first process may end before its children.
    while !tasks.is_empty() {
        let (task, signal) = match waitpid(None, Some(WaitPidFlag::__WALL))? {
            WaitStatus::PtraceEvent(task, _, event) => {
                tasks.insert(task);
                if event == Event::PTRACE_EVENT_EXIT as i32 {
                    ended.extend(weight(task));
                }
                (task, None)
            }
            WaitStatus::Stopped(task, signal) => (task, Some(signal)),
            WaitStatus::Exited(task, code) => {
                tasks.remove(&task);
                if task == first && code != 0 {
                    return Err(io::Error::other(format!("{shell:?}: exit code {code}")));
                }
                continue;
            }
            WaitStatus::Signaled(task, ..) => {
                tasks.remove(&task);
                continue;
            }
            _ => continue,
        };
        // It may have been killed; the next wait will report that.
        let _ = ptrace::cont(task, signal);
    }
    Ok(ended)
}

/// Returns name and peak of a process; None for a thread beyond the first.
fn weight(task: Pid) -> Option<(String, u64)> {
    let text = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let value = |key| text.lines().find_map(|line| line.strip_prefix(key));
    let is_first = value("Tgid:")?.trim() == task.to_string();
    let peak = value("VmHWM:")?.trim().trim_end_matches(" kB").parse();
    is_first.then_some((value("Name:")?.trim().to_owned(), peak.ok()?))
}

/// Copies a command's environment to another.
fn like(command: &Command, mut other: Command) -> Command {
    other.env_clear().current_dir("/");
    for (key, value) in command.get_envs() {
        other.envs(iter::once(key).zip(value));
    }
    other.stdin(Stdio::null()).stderr(Stdio::piped());
    other
}
