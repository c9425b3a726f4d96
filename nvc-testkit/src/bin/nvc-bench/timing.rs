//! Times commands in turn, so that other load on the machine affects all of them alike.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bed::Bed;
use crate::cases::{Case, Program};
use crate::trace::{Memory, Trace, trace};

/// Uncounted runs at the start: caches fill, and the CPU clocks up.
const WARM_UP: usize = 2;

/// Measurements of one command.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// The command.
    pub(crate) case: Case,
    /// Index of the program that ran it.
    pub(crate) program: usize,
    /// Sorted run times.
    times: Vec<Duration>,
    /// Counts from a separate run.
    pub(crate) trace: Trace,
}

impl Figures {
    /// Returns a percentile of the times, ms.
    pub(crate) fn percentile(&self, share: usize) -> f64 {
        let rank = (self.times.len() * share).div_ceil(100).max(1) - 1;
        self.times.get(rank).map_or(0.0, Duration::as_secs_f64) * 1e3
    }

    /// Returns the median, ms.
    pub(crate) fn median(&self) -> f64 {
        self.percentile(50)
    }
}

/// Measures each case with each program that supports it: once in every round, odd rounds in reverse order.
///
/// # Errors
/// A command fails.
pub(crate) fn measure(
    cases: &[Case],
    programs: &[Program],
    bed: &Bed,
    runs: usize,
    memory: Memory,
) -> io::Result<Vec<Figures>> {
    let mut all = Vec::new();
    for case in cases {
        for (number, program) in programs.iter().enumerate() {
            if !case.suits(program) || (number > 0 && !case.is_ours()) {
                continue;
            }
            let trace = follow(case, program, bed, memory)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", case.name)))?;
            all.push(Figures {
                case: case.clone(),
                program: number,
                times: Vec::with_capacity(runs),
                trace,
            });
        }
    }
    for round in 0..runs + WARM_UP {
        let mut turn: Vec<_> = all.iter_mut().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        for figures in turn {
            let mut ready = figures.case.prepare(&programs[figures.program], bed)?;
            let time = time(&mut ready.command)?;
            if round >= WARM_UP {
                figures.times.push(time);
            }
        }
    }
    for figures in &mut all {
        figures.times.sort_unstable();
    }
    Ok(all)
}

/// Runs a case once under trace; if it fails, runs it once more to show the error.
fn follow(case: &Case, program: &Program, bed: &Bed, memory: Memory) -> io::Result<Trace> {
    let trace = trace(&case.prepare(program, bed)?.command, memory)?;
    if trace.succeeded {
        return Ok(trace);
    }
    let mut ready = case.prepare(program, bed)?;
    let output = ready.command.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let text = format!("{:?}: {}: {text}", ready.command, output.status);
    Err(io::Error::other(text))
}

/// Returns the wall-clock time from starting the command until it is reaped.
fn time(command: &mut Command) -> io::Result<Duration> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let status = command.spawn()?.wait()?;
    let time = start.elapsed();
    if status.success() {
        return Ok(time);
    }
    Err(io::Error::other(format!("{command:?}: {status}")))
}
