//! Makes one chosen system call of a command fail, or kills the command there: the way to `nvc-fault`, which does it.
//!
//! Calls that cannot fail are left out ([`syscalls::INFALLIBLE`](crate::syscalls::INFALLIBLE)). A command's calls are counted for each of its tasks, since tasks run side by side: `main`, its first thread
//! `main.thread`, the second one `main.thread2`, a process that borrows its parent's memory until it executes something
//! `main.program`, any other process `main.process`; their own children likewise, `main.thread.process`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fmt, fs, io};

use nix::errno::Errno;

use crate::cli;

/// What happens to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whose call it is.
    pub task: String,
    /// Which of its calls, the first is 0.
    pub call: usize,
    /// What happens instead.
    pub effect: Effect,
}

/// What happens instead of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails.
    Fails(Errno),
    /// The command, not its children, is killed; when it is gone the others go on, with this call if it is theirs.
    Killed,
}

/// The calls of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Numbers of the calls, by task.
    pub calls: BTreeMap<String, Vec<i64>>,
    /// The number of the call that the fault met, if it did.
    pub hit: Option<i64>,
}

/// The command that a command line is to be appended to: runs that with a fault, or counts its calls.
///
/// # Errors
/// The place of the program is not known.
pub fn command(fault: Option<&Fault>, report: &Path) -> io::Result<Command> {
    let mut command = Command::new(cli::beside("nvc-fault")?);
    command.arg("--report").arg(report);
    if let Some(fault) = fault {
        command.arg("--task").arg(&fault.task);
        command.arg("--call").arg(fault.call.to_string());
        match fault.effect {
            Effect::Fails(errno) => command.arg("--errno").arg((errno as i32).to_string()),
            Effect::Killed => command.arg("--kill"),
        };
    }
    command.arg("--");
    Ok(command)
}

/// The same without a fault, on a kernel that answers as before 5.2 to what `nvc-without` cannot see.
///
/// # Errors
/// The place of the program is not known.
pub fn old_kernel(report: &Path) -> io::Result<Command> {
    let mut command = Command::new(cli::beside("nvc-fault")?);
    command.arg("--report").arg(report).args(["--old", "--"]);
    Ok(command)
}

/// The same without a fault; as soon as the command's first task has made the call `name` for the `nth` time, the first
/// is 0, two files exchange their names, as a process in another mount namespace can do it.
///
/// # Errors
/// The place of the program is not known.
pub fn exchanging(
    (name, nth): (&str, usize),
    (one, other): (&Path, &Path),
    report: &Path,
) -> io::Result<Command> {
    let mut command = nth_call(name, nth, report)?;
    command.arg("--exchange").arg(one).arg("--with").arg(other);
    command.arg("--");
    Ok(command)
}

/// The same with that call failing.
///
/// # Errors
/// The place of the program is not known.
pub fn failing((name, nth): (&str, usize), errno: i32, report: &Path) -> io::Result<Command> {
    let mut command = nth_call(name, nth, report)?;
    command.args(["--errno", &errno.to_string(), "--"]);
    Ok(command)
}

fn nth_call(name: &str, nth: usize, report: &Path) -> io::Result<Command> {
    let mut command = Command::new(cli::beside("nvc-fault")?);
    command.arg("--report").arg(report);
    command.args(["--task", "main", "--of", name, "--call", &nth.to_string()]);
    Ok(command)
}

impl Report {
    /// Reads what `nvc-fault` wrote.
    ///
    /// # Errors
    /// It cannot be read or is none.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut report = Self::default();
        for line in fs::read_to_string(path)?.lines() {
            let garbled = || io::Error::other(format!("{}: {line}", path.display()));
            let (task, number) = line.split_once(' ').ok_or_else(garbled)?;
            let number = number.parse().map_err(|_| garbled())?;
            if task == HIT {
                report.hit = Some(number);
            } else {
                let calls = report.calls.entry(task.to_owned()).or_default();
                calls.push(number);
            }
        }
        Ok(report)
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.calls.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What stands in a report in place of a task.
pub const HIT: &str = "hit";

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} call {}", self.task, self.call)?;
        match self.effect {
            Effect::Fails(errno) => write!(f, " {errno:?}"),
            Effect::Killed => write!(f, " killed"),
        }
    }
}
