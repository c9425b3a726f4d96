//! `nvidia-container-runtime-hook`: adds the requested GPUs to a container before its process starts.
//!
//! [`arguments`] parses the command line, [`input`] reads the container, [`prestart`] decides. If the
//! nvidia-container-cli it finds was installed together with this program, [`within`] does that program's work in this
//! process; otherwise it is executed with the arguments from [`call`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

mod arguments;
mod call;
mod failure;
mod input;
mod jetson;
mod prestart;
mod within;

use std::io::Write as _;

use arguments::{Command, CommandLine, Mistake};
use libnvc::Error;
use libnvc::host::query::serve_if_asked;
use nvc_program::messages::{self, Severity};

const NAME: &str = "nvidia-container-runtime-hook";

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    messages::take_panics();
    // The NVML query may be this program, executed again.
    serve_if_asked();
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match arguments::read(&words) {
        Ok(CommandLine { command, options }) => match command {
            Command::Prestart => match prestart::run(&options) {
                Ok(()) => 0,
                Err(error) => {
                    report(&error);
                    1
                }
            },
            Command::Nothing => 0,
            Command::Version => {
                // Fails if the reader has closed it.
                let _ = writeln!(
                    std::io::stdout(),
                    "NVIDIA Container Runtime Hook version {}\ncommit: {}",
                    env!("CARGO_PKG_VERSION"),
                    env!("NVC_BUILD_REVISION")
                );
                0
            }
            Command::Help => {
                messages::write_fixed(USAGE);
                0
            }
        },
        Err(Mistake(text)) => {
            messages::write_lines(text);
            messages::write_fixed(USAGE);
            2
        }
    }
}

/// Prints a failure; logs it if the streams of hooks are files that the image has chosen.
fn report(error: &Error) {
    let lines = failure::lines(error);
    if messages::is_silent() {
        for line in &lines {
            messages::to_system_log(NAME, Severity::Error, line);
        }
    }
    messages::write_lines(lines);
}

const USAGE: &str = "\
Usage of nvidia-container-runtime-hook:
  -config string
    \tconfiguration file
  -debug
    \tenable debug output
  -version
    \tenable version output

Commands:
  prestart
        run the prestart hook
  poststart
        no-op
  poststop
        no-op
";
