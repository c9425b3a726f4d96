//! Times commands in turn, so that other load on the machine affects all of them alike.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::bed::Bed;
use crate::cases::{Case, Program};

/// Uncounted runs at the start: caches fill, and the CPU clocks up.
const WARM_UP: usize = 2;

/// Measurements of one command.
pub(crate) struct Figures {
    pub(crate) case: Case,
    /// Index of the program that ran it.
    pub(crate) program: usize,
    /// In the order of the runs, ms.
    times: Vec<f64>,
    /// Counts from a separate run.
    pub(crate) trace: Trace,
}

/// The costs of a command that do not depend on load.
#[derive(Default)]
pub(crate) struct Trace {
    /// System calls of all its processes.
    pub(crate) calls: usize,
    /// Its processes in the order in which they ended: name, and peak resident memory in kB.
    pub(crate) processes: Vec<(String, usize)>,
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
            if case.suits(program) && (number == 0 || case.is_ours()) {
                let ready = case.prepare(program, bed)?;
                all.push(Figures {
                    case: case.clone(),
                    program: number,
                    times: Vec::with_capacity(runs),
                    trace: trace(&ready.command, bed)?,
                });
            }
        }
    }
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..runs + WARM_UP {
        let mut turn: Vec<_> = all.iter_mut().collect();
        random.shuffle(&mut turn);
        for figures in turn {
            let mut ready = figures.case.prepare(&programs[figures.program], bed)?;
            let time = time([&mut ready.command])?;
            figures.times.extend((round >= WARM_UP).then_some(time));
        }
    }
    Ok(all)
}

/// Returns the wall-clock time from starting the first command until all are reaped, ms.
///
/// # Errors
/// One fails: its command line, status and first messages.
pub(crate) fn time<'c>(commands: impl IntoIterator<Item = &'c mut Command>) -> io::Result<f64> {
    let mut commands: Vec<_> = commands.into_iter().collect();
    let mut messages = Vec::with_capacity(commands.len());
    for command in &mut commands {
        // A file, because nothing reads a pipe meanwhile.
        let file = tempfile::tempfile()?;
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(file.try_clone()?);
        messages.push(file);
    }
    let start = Instant::now();
    let started = commands.iter_mut().map(|command| command.spawn());
    let started = started.collect::<io::Result<Vec<_>>>()?;
    let ended = started.into_iter().map(|mut child| child.wait());
    let ended = ended.collect::<io::Result<Vec<_>>>()?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    for ((command, status), messages) in commands.iter().zip(ended).zip(messages) {
        if !status.success() {
            let text = beginning(messages)?;
            let text = format!("a measured run: {status}: {command:?}\n{text}");
            return Err(io::Error::other(text));
        }
    }
    Ok(time)
}

/// Returns the first lines of a file.
fn beginning(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(1 << 16).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().take(20).collect::<Vec<_>>().join("\n"))
}

/// Runs a command under the kit's tracer.
fn trace(command: &Command, bed: &Bed) -> io::Result<Trace> {
    let mut tracer = Command::new(bed.program("trace"));
    let variables = command.get_envs();
    let variables = variables.filter_map(|(key, value)| Some((key, value?)));
    tracer.env_clear().envs(variables).current_dir("/");
    tracer.arg(command.get_program()).args(command.get_args());
    let output = tracer.output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{command:?}: {output:?}")));
    }
    let mut trace = Trace::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse().map_err(io::Error::other);
        match words[..] {
            ["calls", calls] => trace.calls = number(calls)?,
            [peak, name, ..] => trace.processes.push((name.into(), number(peak)?)),
            _ => {}
        }
    }
    Ok(trace)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_run_explains_itself() {
        let shell = |script| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell
        };
        let mut good = shell("echo noise >&2");
        let mut bad = shell("echo the cause >&2; exit 3");
        assert!(time([&mut good]).unwrap() > 0.0);
        let error = time([&mut good, &mut bad]).unwrap_err().to_string();
        for part in ["exit status: 3", "exit 3\"", "the cause"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("noise"), "{error}");
    }
}
