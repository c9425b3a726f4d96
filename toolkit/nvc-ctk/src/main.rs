//! `nvidia-ctk`: generates CDI specifications, configures engines and the toolkit, creates device nodes, and diagnoses
//! problems.
//!
//! [`table`] lists commands and options, [`line`] parses the command line and the environment, [`commands`] does the
//! work: with nvc-cdi, nvc-generate and libnvc, with [`engine`] for the files of container engines, and with
//! [`config_file`] for ours. [`logging`] reports the result.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

// the command line
mod line;

// actions
mod ask;
mod commands;

// files edited
mod config_file;
mod engine;
mod toml_values;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod any_text;

// messages
mod logging;

use nvc_options::ctk as table;
use nvc_program::messages;

use line::Read;

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    messages::take_panics();

    let words: Vec<_> = std::env::args_os().collect();
    let line = match line::read(&words, &|name| std::env::var_os(name)) {
        Read::CommandLine(line) => line,
        Read::Text(text) => {
            return code(logging::print(&text).map(|()| 0));
        }
        Read::Unknown { word, hint } => {
            messages::write_line(&format!("No help topic for '{word}'"));
            messages::write_line(&format!("hint: {hint}"));
            return 3;
        }
        Read::Mistake { error, hint } => {
            messages::write_line(&error);
            messages::write_line(&format!("hint: {hint}"));
            return 1;
        }
    };
    // A hook has a logger of its own, for the system's log too.
    if line.path != ["hook"] {
        logging::start(&line);
    }
    for name in &line.without_effect {
        let command = line.path.join(" ");
        // As upstream, where it is silent: another file than the named one would be changed.
        log::warn!("--{name} before {command} has no effect: {command} has its own, after it");
    }
    code(commands::run(&line))
}

fn code(done: libnvc::Result<u8>) -> u8 {
    done.unwrap_or_else(|error| {
        logging::failure(&error);
        1
    })
}
