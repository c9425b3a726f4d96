//! Makes one chosen system call of a command fail, or kills the command there, by the program `nvc-fault`.
//!
//! Calls that cannot fail are skipped ([`syscalls::INFALLIBLE`](crate::syscalls::INFALLIBLE)). Calls are counted per
//! task, because tasks run in parallel. The tasks are named `main`; its first thread `main.thread`, the second
//! `main.thread2`; a process that borrows its parent's memory until it executes a program `main.program`; any other
//! process `main.process`. Their own children are named likewise, `main.thread.process`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fmt, fs, io};

use nix::errno::Errno;

use crate::cli;

/// A fault in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The task that makes the call.
    pub task: String,
    /// Only calls of this name count; None for all. How many others there are differs a little from run to run.
    pub of: Option<&'static str>,
    /// Index of the call among those of the task that count, from 0.
    pub call: usize,
    /// The fault's effect.
    pub effect: Effect,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails.
    Fails(Errno),
    /// The command, but not its children, is killed. When it is gone the others continue, including this call if it is
    /// theirs.
    Killed,
}

/// The calls of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// System call numbers by task.
    pub calls: BTreeMap<String, Vec<i64>>,
    /// The system call number that the fault hit, if any.
    pub hit: Option<i64>,
}

/// Returns the command prefix that injects a fault, or only counts calls.
///
/// # Errors
/// The program's path is unknown.
pub fn command(fault: Option<&Fault>, report: &Path) -> io::Result<Command> {
    let mut command = Command::new(cli::beside("nvc-fault")?);
    command.arg("--report").arg(report);
    if let Some(fault) = fault {
        command.arg("--task").arg(&fault.task);
        command.arg("--call").arg(fault.call.to_string());
        if let Some(name) = fault.of {
            command.args(["--of", name]);
        }
        match fault.effect {
            Effect::Fails(errno) => command.arg("--errno").arg((errno as i32).to_string()),
            Effect::Killed => command.arg("--kill"),
        };
    }
    command.arg("--");
    Ok(command)
}

/// Counts calls without a fault, on a kernel that behaves as before 5.2 in ways that `nvc-without` cannot emulate.
///
/// # Errors
/// The program's path is unknown.
pub fn old_kernel(report: &Path) -> io::Result<Command> {
    let mut command = Command::new(cli::beside("nvc-fault")?);
    command.arg("--report").arg(report).args(["--old", "--"]);
    Ok(command)
}

/// Counts calls without a fault. When the command's first task has made the call `name` for the `nth` time (from 0),
/// two files exchange their names, as a process in another mount namespace could do it.
///
/// # Errors
/// The program's path is unknown.
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

/// Makes the `nth` call `name` of the first task fail.
///
/// # Errors
/// The program's path is unknown.
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
    /// Parses `nvc-fault`'s report.
    ///
    /// # Errors
    /// It cannot be read or is invalid.
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

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.calls.values().map(Vec::len).sum()
    }

    /// Returns true if there are no calls.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The word in a report in place of a task name.
pub const HIT: &str = "hit";

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} call {}",
            self.task,
            self.of.unwrap_or("any"),
            self.call
        )?;
        match self.effect {
            Effect::Fails(errno) => write!(f, " {errno:?}"),
            Effect::Killed => write!(f, " killed"),
        }
    }
}
