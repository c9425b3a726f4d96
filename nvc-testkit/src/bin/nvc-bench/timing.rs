//! Times commands in turn, so that other load on the machine affects all of them alike.

use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::bed::Bed;
use crate::cases::{Case, Program};
use crate::trace::{Trace, trace};

/// Uncounted runs at the start: caches fill, and the CPU clocks up.
const WARM_UP: usize = 2;

/// Measurements of one command.
pub(crate) struct Figures {
    pub(crate) case: Case,
    /// Index of the program that ran it.
    pub(crate) program: usize,
    /// In the order of the runs, ms.
    times: Vec<f64>,
    /// Counts from separate runs.
    pub(crate) trace: Trace,
}

impl Figures {
    /// Returns a percentile, ms.
    pub(crate) fn percentile(&self, share: usize) -> f64 {
        percentile(self.times.clone(), share)
    }

    /// Returns the quartiles of the ratios of runs in the same round: load that lasts for some rounds cancels out.
    pub(crate) fn paired_ratios(&self, other: &Self) -> [f64; 3] {
        let pairs = self.times.iter().zip(&other.times);
        let ratios: Vec<_> = pairs.map(|(own, other)| own / other).collect();
        [25, 50, 75].map(|share| percentile(ratios.clone(), share))
    }
}

pub(crate) fn percentile(mut values: Vec<f64>, share: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * share).div_ceil(100).max(1) - 1;
    values.get(rank).copied().unwrap_or(f64::NAN)
}

/// Measures each case with each program that supports it: once in every round, in a new order each time, because a
/// command's time depends on the one before it.
///
/// # Errors
/// A command fails.
pub(crate) fn measure(
    cases: &[Case],
    programs: &[Program],
    bed: &Bed,
    runs: usize,
) -> io::Result<Vec<Figures>> {
    let mut all = Vec::new();
    for case in cases {
        for (number, program) in programs.iter().enumerate() {
            if !case.suits(program) || (number > 0 && !case.is_ours()) {
                continue;
            }
            let ready = case.prepare(program, bed)?;
            all.push(Figures {
                case: case.clone(),
                program: number,
                times: Vec::with_capacity(runs),
                trace: trace(&ready.command)?,
            });
        }
    }
    let mut seed = 1;
    for round in 0..runs + WARM_UP {
        let mut turn: Vec<_> = all.iter_mut().collect();
        shuffle(&mut turn, &mut seed);
        for figures in turn {
            let mut ready = figures.case.prepare(&programs[figures.program], bed)?;
            let time = time([&mut ready.command])?;
            figures.times.extend((round >= WARM_UP).then_some(time));
        }
    }
    Ok(all)
}

/// Shuffles a list by a linear congruential generator, whose upper bits are random enough.
fn shuffle<T>(list: &mut [T], seed: &mut u64) {
    for end in (1..list.len()).rev() {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = usize::try_from(*seed >> 33).unwrap_or_default();
        list.swap(end, random % (end + 1));
    }
}

/// Returns the wall-clock time from starting the first command until all are reaped, ms.
pub(crate) fn time<'c>(commands: impl IntoIterator<Item = &'c mut Command>) -> io::Result<f64> {
    let commands = commands.into_iter().map(|command| {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null())
    });
    let commands: Vec<_> = commands.collect();
    let start = Instant::now();
    let started = commands.into_iter().map(Command::spawn);
    let started = started.collect::<io::Result<Vec<_>>>()?;
    let mut failed = None;
    for mut child in started {
        let status = child.wait()?;
        failed = failed.or((!status.success()).then_some(status));
    }
    let time = start.elapsed().as_secs_f64() * 1e3;
    match failed {
        None => Ok(time),
        Some(status) => Err(io::Error::other(format!("a measured run: {status}"))),
    }
}
