//! `nvidia-container-cli` without its help: the program runs all its commands with this library, and the prestart hook
//! runs [`configure`] in its own process.
//!
//! nvc-options parses the command line like argp (`getopt`); [`request`] converts it to a task, [`commands`] runs it with
//! libnvc, [`output`] prints.

#![forbid(unsafe_code)]

// the command line
mod request;
mod user;

// actions
mod commands;
mod listing;

// messages
mod failure;
mod logging;
mod output;

use std::ffi::OsString;

use libnvc::host::query::QueryProcess;
use nvc_options::getopt::{self, CommandLine, Parsed};

pub use commands::configure::{Answers, Caller};
pub use commands::start_query;
pub use failure::CommandError;
pub use logging::start_for_hook;
pub use output::write;
use request::Task;

/// Runs a command of the program `name`, with a query that has been started or a new one.
///
/// # Errors
/// A value is invalid, or the command fails.
pub fn run(
    words: &CommandLine,
    query: Option<QueryProcess>,
    name: &str,
) -> Result<(), CommandError> {
    let invocation = request::read(words)?;
    commands::run(invocation, query.unwrap_or_else(start_query), name)
}

/// Runs the command `configure`, whose words are options, the command and its arguments. Warnings go to the caller's
/// logger.
///
/// # Errors
/// A word or a value is invalid, or the container cannot be configured.
pub fn configure(words: &[OsString], caller: Caller<'_>) -> Result<(), CommandError> {
    let parsed = getopt::read(&getopt::Caller::new(None), words);
    let invocation = match &parsed {
        Parsed::Run(words) => Some(request::read(words)?),
        _ => None,
    };
    match invocation.map(|found| (found.driver, found.task)) {
        Some((driver, Task::Configure(task))) => {
            commands::configure::run(driver, task.request, task.target, caller)
        }
        _ => Err(CommandError::input("no call of configure", "")),
    }
}
