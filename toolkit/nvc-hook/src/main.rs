//! `nvidia-container-runtime-hook`: adds the requested GPUs to a container before its process starts.
//!
//! [`arguments`] parses the command line, [`input`] reads the container, [`prestart`] decides, [`report`] says what went
//! wrong. If the nvidia-container-cli it finds was installed together with this program, [`within`] does that program's
//! work in this process; otherwise it is executed with the arguments from [`call`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

mod arguments;
mod call;
mod input;
mod jetson;
mod prestart;
mod report;
mod within;

use std::io::Write as _;

use arguments::{Command, CommandLine, Mistake};
use libnvc::host::query::serve_if_asked;
use nvc_program::{messages, warnings};
use report::Report;

const NAME: &str = "nvidia-container-runtime-hook";

/// The program whose work this one does, or that it executes.
const CLI: &str = "nvidia-container-cli";

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    messages::take_panics();
    // The NVML query may be this program, executed again.
    serve_if_asked();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let mut report = Report::new();
    match arguments::read(&words) {
        Ok(CommandLine { command, options }) => match command {
            Command::Prestart => {
                let done = prestart::run(&options, &mut report);
                for warning in warnings::take() {
                    report.warning_of_cli(&warning);
                }
                match done {
                    Ok(()) => 0,
                    Err(error) => {
                        report.failure(&error);
                        1
                    }
                }
            }
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
            if let Some(text) = text {
                report.mistake(&text);
            }
            messages::write_fixed(USAGE);
            2
        }
    }
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
