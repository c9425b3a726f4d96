//! `nvc-bench`: measures nvidia-container-cli and writes the tables of docs/performance.md.
//!
//! Runs as root, in its own mount namespace, on scratch space in memory.

mod bed;
mod cases;
mod report;
mod scale;
mod timing;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nvc_testkit::harness;
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
    /// Runs of each command; a tenth of it for scaling, a fifth for images
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure only this part
    #[arg(long, value_parser = ["commands", "images", "scaling"])]
    only: Option<String>,
    /// Scaling up to this size only
    #[arg(long, default_value_t = u32::MAX, hide_default_value = true)]
    up_to: u32,
    /// Write the tables of docs/performance.md in this directory
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    // As in all figures so far; the baseline opens paths without a root.
    harness::on_debian();
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
    let (program, runs) = (&programs[0], options.runs as usize);
    // Written one by one, so that a later failure does not lose earlier tables.
    let add = |mark, text: &str| {
        println!("{text}");
        let directory = options.write.as_deref();
        directory.map_or(Ok(()), |directory| report::put(directory, mark, text))
    };
    if wants("commands") {
        let bed = Bed::usual()?;
        let figures = timing::measure(&Case::all(), programs, &bed, runs)?;
        let (mark, text) = report::commands(&figures, &bed, runs)?;
        add(mark, &text)?;
        if programs.len() > 1 {
            println!("{}", report::ratios(&figures, programs));
        }
    }
    if wants("images") {
        add("images", &scale::images(program, runs.div_ceil(5))?)?;
    }
    if wants("scaling") {
        let tables = scale::all(program, runs.div_ceil(10), options.up_to)?;
        add("scaling", &tables)?;
    }
    Ok(())
}
