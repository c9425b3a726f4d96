//! `nvidia-container-runtime-hook`: puts the GPUs that a container asks for into it, before its process starts.
//!
//! [`arguments`] reads the command line, [`input`] the container, [`prestart`] decides and acts: it calls
//! nvidia-container-cli with the words that [`call`] puts together.

#![forbid(unsafe_code)]

mod arguments;
mod call;
mod input;
mod prestart;

use std::process::ExitCode;

use arguments::{Command, Line, Mistake};

const NAME: &str = "nvidia-container-runtime-hook";

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match arguments::read(&words) {
        Ok(Line { command, options }) => match command {
            Command::Prestart => match prestart::run(&options) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => {
                    eprintln!("{failure}");
                    ExitCode::FAILURE
                }
            },
            Command::Nothing => ExitCode::SUCCESS,
            Command::Version => {
                println!(
                    "NVIDIA Container Runtime Hook version {}",
                    env!("CARGO_PKG_VERSION")
                );
                println!("commit: {}", env!("NVC_BUILD_REVISION"));
                ExitCode::SUCCESS
            }
            Command::Help => {
                eprint!("{}", usage());
                ExitCode::SUCCESS
            }
        },
        Err(Mistake(text)) => {
            if let Some(text) = text {
                eprintln!("{text}");
            }
            eprint!("{}", usage());
            ExitCode::from(2)
        }
    }
}

fn usage() -> String {
    format!(
        "\
Usage of {NAME}:
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
"
    )
}
