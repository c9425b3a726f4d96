//! `nvc-bench`: measures nvidia-container-cli and writes the tables of docs/performance.md.
//!
//! Runs as root, with strace(1), in its own mount namespace, on scratch space in memory.

mod bed;
mod cases;
mod report;
mod scale;
mod timing;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

use nvc_testkit::machine::Machine;

use bed::Bed;
use cases::{Case, Program};
use scale::Scale;

const USAGE: &str = "\
usage: nvc-bench [OPTION...] PROGRAM       measure an nvidia-container-cli

  --against PROGRAM   another one, measured in turn; may be repeated
  --baseline PROGRAM  what scripts/bench/baseline.c is compiled to
  --runs N            runs of each command (default 200); a tenth of it for scaling, a fifth for images
  --only PART         commands, images or scaling
  --command NAME      of the commands those with this in their names
  --up-to N           scaling up to this size only
  --docs DIR          write DIR/performance.md's tables
  --readme FILE       write the short table of this file
";

struct Wanted {
    /// The tables describe the first one and compare the others with it.
    programs: Vec<PathBuf>,
    baseline: Option<PathBuf>,
    runs: usize,
    only: Option<String>,
    command: String,
    up_to: u32,
    docs: Option<PathBuf>,
    readme: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Some(wanted) = parse(env::args().skip(1)) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvc-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Wanted> {
    let mut program = None;
    let mut wanted = Wanted {
        programs: Vec::new(),
        baseline: None,
        runs: 200,
        only: None,
        command: String::new(),
        up_to: u32::MAX,
        docs: None,
        readme: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--against" => wanted.programs.push(words.next()?.into()),
            "--baseline" => wanted.baseline = Some(words.next()?.into()),
            "--runs" => wanted.runs = words.next()?.parse().ok().filter(|runs| *runs > 0)?,
            "--only" => {
                let known = ["commands", "images", "scaling"];
                wanted.only = Some(words.next().filter(|part| known.contains(&part.as_str()))?);
            }
            "--command" => wanted.command = words.next()?,
            "--up-to" => wanted.up_to = words.next()?.parse().ok()?,
            "--docs" => wanted.docs = Some(words.next()?.into()),
            "--readme" => wanted.readme = Some(words.next()?.into()),
            _ if word.starts_with('-') || program.is_some() => return None,
            _ => program = Some(word),
        }
    }
    wanted.programs.insert(0, program?.into());
    Some(wanted)
}

fn run(wanted: &Wanted) -> io::Result<()> {
    let programs = wanted.programs.iter().map(|path| Program::new(path));
    let programs = programs.collect::<io::Result<Vec<_>>>()?;
    let machine = Machine::enter()?;
    let result = measure(wanted, &programs);
    // Remaining mounts vanish with the namespace.
    let left = machine.leave();
    result.and(left)
}

fn measure(wanted: &Wanted, programs: &[Program]) -> io::Result<()> {
    let wants = |part: &str| wanted.only.as_deref().is_none_or(|only| only == part);
    // Written one by one, so that a later failure does not lose earlier tables.
    let add = |mark, text: String| {
        println!("{text}");
        match &wanted.docs {
            Some(docs) => report::put(&docs.join("performance.md"), mark, &text),
            None => Ok(()),
        }
    };
    if wants("commands") {
        let bed = Bed::find()?;
        let machine = report::machine(&bed, wanted.runs)?;
        // It runs in the root directory.
        let baseline = wanted.baseline.as_deref().map(fs::canonicalize);
        let mut cases = Case::all(baseline.transpose()?.as_deref());
        cases.retain(|case| case.name.contains(&wanted.command));
        let figures = timing::measure(&cases, programs, &bed, wanted.runs)?;
        if let Some(readme) = &wanted.readme {
            let text = report::summary(&figures, &machine, &bed);
            report::put(readme, "summary", &text)?;
        }
        add("machine", machine)?;
        add("times", report::times(&figures, &bed))?;
        add("resources", report::resources(&figures, &bed))?;
        add("memory", report::memory(&figures))?;
        if programs.len() > 1 {
            println!("{}", report::ratios(&figures, programs));
        }
    }
    let scale = |runs| Scale {
        program: &programs[0],
        runs,
        up_to: wanted.up_to,
    };
    if wants("images") {
        let images = scale(wanted.runs.div_ceil(5)).images()?;
        add("images", report::scaling(&[images]))?;
    }
    if wants("scaling") {
        let all = scale(wanted.runs.div_ceil(10)).all()?;
        add("scaling", report::scaling(&all))?;
    }
    Ok(())
}
