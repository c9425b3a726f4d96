//! Changes the root of a specification's paths.

use std::io::Read;
use std::path::Path;

use libnvc::Result;
use nvc_cdi::emit::{Format, text};
use nvc_cdi::transform::{Side, Transform};
use nvc_cdi::{file, parse, validate};
use nvc_hostfile::system;

use crate::commands::invalid;
use crate::line::CommandLine;
use crate::logging::print;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let side = match line.text("relative-to") {
        "host" => Side::Host,
        "container" => Side::Container,
        other => return Err(invalid(format!("invalid --relative-to value: {other}"))),
    };
    let (from, to) = (line.text("from"), line.text("to"));
    if from != to && (from.is_empty() || to.is_empty()) {
        return Err(invalid("--from and --to must name a root").hint("the host's own root is /"));
    }
    let (input, output) = (line.text("input"), line.text("output"));
    let mut spec = parse(&read(input)?).map_err(|error| error.context(input))?;
    Transform::new(from, to, side).apply(&mut spec)?;
    validate::spec(&spec).map_err(|error| error.context("invalid specification"))?;
    if output.is_empty() {
        return print(&text(&spec, Format::Yaml, None));
    }
    let (path, format) = file::output(Path::new(output), None);
    file::write(&path, &spec, format, None)
}

fn read(input: &str) -> Result<Vec<u8>> {
    let read = match input {
        "" | "-" => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
        }
        path => std::fs::read(path),
    };
    read.map_err(|error| system("open failed", input, &error))
}
