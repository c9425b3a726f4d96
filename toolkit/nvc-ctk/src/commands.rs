//! Runs the commands, each in its own file.

mod cdi;
mod config;
mod configure;
mod doctor;
mod hook;
mod info;
mod repair;
mod system;
mod unregister;

use libnvc::{Error, ErrorKind, Result};

use crate::line::CommandLine;

/// Runs the command of a line; returns the exit code.
pub(crate) fn run(line: &CommandLine) -> Result<u8> {
    // Upstream has the other commands, and ignores such words.
    if let (Some("doctor" | "info" | "unregister" | "verify"), Some(word)) =
        (line.path.last().copied(), line.rest.first())
    {
        return Err(invalid(format!("this command takes no \"{word}\"")));
    }
    match line.path.as_slice() {
        ["cdi", "generate"] => cdi::generate::run(line),
        ["cdi", "verify"] => return cdi::verify::run(line),
        ["cdi", "list"] => cdi::list::run(line),
        ["cdi", "transform", "root"] => cdi::transform::run(line),
        ["config"] => config::run(line),
        ["config", "default"] => config::default(line),
        ["runtime", "configure"] => configure::run(line),
        ["runtime", "unregister"] => return unregister::run(line),
        ["system", "create-device-nodes"] => system::nodes::run(line),
        ["system", "create-dev-char-symlinks"] => system::links::run(line),
        ["doctor"] => return doctor::run(line),
        ["hook"] => return Ok(hook::run(line)),
        ["info"] => info::run(line),
        other => Err(Error::new(ErrorKind::InvalidArgument, format!("{other:?}"))),
    }
    .map(|()| 0)
}

/// Returns true for `--format=json`, false for text.
fn wants_json(line: &CommandLine) -> Result<bool> {
    match line.text("format") {
        "text" => Ok(false),
        "json" => Ok(true),
        other => Err(invalid(format!("invalid --format value: {other}"))),
    }
}

/// Returns the error for an invalid option value.
fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}
