//! `nvidia-ctk`: generates CDI specifications, configures engines and the toolkit, creates device nodes, and diagnoses
//! problems.
//!
//! [`table`] lists commands and options, [`line`] parses the command line and the environment, [`commands`] does the
//! work with nvc-toolkit and libnvc, [`logging`] reports the result.

#![forbid(unsafe_code)]

// the command line
mod line;

// actions
mod commands;

// messages
mod logging;

use std::process::ExitCode;

use libnvc::host::query::serve_if_asked;
use line::Read;
use nvc_options::ctk as table;

fn main() -> ExitCode {
    // The NVML query is this program, executed again.
    serve_if_asked();
    libnvc::await_children();

    let words: Vec<_> = std::env::args_os().collect();
    let line = match line::read(&words, &|name| std::env::var_os(name)) {
        Read::CommandLine(line) => line,
        Read::Text(text) => {
            return code(logging::print(&text).map(|()| 0));
        }
        Read::Unknown { word } => {
            eprintln!("No help topic for '{word}'");
            return ExitCode::from(3);
        }
        Read::Mistake { text, error } => {
            let _ = logging::print(&text);
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    logging::start(&line);
    code(commands::run(&line))
}

fn code(done: libnvc::Result<u8>) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            logging::failure(&error);
            ExitCode::FAILURE
        }
    }
}
