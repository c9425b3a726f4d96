//! `nvc-bench`: measures nvidia-container-cli and writes the tables of docs/performance.md.
//!
//! Runs as root, in its own mount namespace, on scratch space in memory.

mod bed;
mod cases;
mod report;
mod scale;
mod timing;
mod trace;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use nvc_testkit::machine::Machine;

use bed::Bed;
use cases::{Case, Program};

/// Measures an nvidia-container-cli.
#[derive(Parser)]
struct Options {
    program: PathBuf,
    /// Another program, measured in turn; may be repeated
    #[arg(long, value_name = "PROGRAM")]
    against: Vec<PathBuf>,
    /// The program that scripts/bench/baseline.c is compiled to
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Runs of each command; a tenth of it for scaling, a fifth for images
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure only this part
    #[arg(long, value_name = "PART", value_parser = PossibleValuesParser::new(["commands", "images", "scaling"]))]
    only: Option<String>,
    /// Only commands with this in their names
    #[arg(long, value_name = "NAME", default_value = "")]
    command: String,
    /// Scaling up to this size only
    #[arg(
        long,
        value_name = "N",
        default_value = "4294967295",
        hide_default_value = true
    )]
    up_to: u32,
    /// Write DIR/performance.md's tables
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    /// Write the short table of this file
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvc-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let programs = [&options.program].into_iter().chain(&options.against);
    let programs = programs.map(Program::new).collect::<io::Result<Vec<_>>>()?;
    let machine = Machine::enter()?;
    let result = measure(options, &programs);
    // Remaining mounts vanish with the namespace.
    let left = machine.leave();
    result.and(left)
}

/// The tables describe the first program and compare the others with it.
fn measure(options: &Options, programs: &[Program]) -> io::Result<()> {
    let wants = |part| options.only.as_deref().is_none_or(|only| only == part);
    let runs = options.runs as usize;
    // Written one by one, so that a later failure does not lose earlier tables.
    let add = |mark, text: String| {
        println!("{text}");
        match &options.docs {
            Some(docs) => report::put(&docs.join("performance.md"), mark, &text),
            None => Ok(()),
        }
    };
    if wants("commands") {
        let bed = Bed::find(options.baseline.as_deref())?;
        let machine = report::machine(&bed, runs)?;
        let mut cases = Case::all(options.baseline.is_some());
        cases.retain(|case| case.name.contains(&options.command));
        let figures = timing::measure(&cases, programs, &bed, runs)?;
        let [summary, times, resources, memory, ratios] =
            report::commands(&figures, programs, &bed);
        if let Some(readme) = &options.readme {
            report::put(readme, "summary", &format!("{machine}\n{summary}"))?;
        }
        add("machine", machine)?;
        add("times", times)?;
        add("resources", resources)?;
        add("memory", memory)?;
        if programs.len() > 1 {
            println!("{ratios}");
        }
    }
    if wants("images") {
        let images = scale::images(&programs[0], runs.div_ceil(5))?;
        add("images", images)?;
    }
    if wants("scaling") {
        let all = scale::all(&programs[0], runs.div_ceil(10), options.up_to)?;
        add("scaling", all)?;
    }
    Ok(())
}
