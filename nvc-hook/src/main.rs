//! `nvidia-container-runtime-hook`: adds the requested GPUs to a container before its process starts.
//!
//! [`arguments`] parses the command line, [`input`] reads the container, [`prestart`] decides and acts: it executes
//! nvidia-container-cli with the arguments from [`call`].

#![forbid(unsafe_code)]
#![cfg_attr(all(target_os = "linux", target_env = "gnu", not(test)), no_main)] // see libnvc::main!

mod arguments;
mod call;
mod input;
mod prestart;

use arguments::{Command, Line, Mistake};

const NAME: &str = "nvidia-container-runtime-hook";

libnvc::main!(main_with_status);

/// Runs the program; returns its exit code.
fn main_with_status() -> u8 {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match arguments::read(&words) {
        Ok(Line { command, options }) => match command {
            Command::Prestart => match prestart::run(&options) {
                Ok(()) => 0,
                Err(failure) => {
                    eprintln!("{failure}");
                    1
                }
            },
            Command::Nothing => 0,
            Command::Version => {
                println!(
                    "NVIDIA Container Runtime Hook version {}",
                    env!("CARGO_PKG_VERSION")
                );
                println!("commit: {}", env!("NVC_BUILD_REVISION"));
                0
            }
            Command::Help => {
                eprint!("{}", usage());
                0
            }
        },
        Err(Mistake(text)) => {
            if let Some(text) = text {
                eprintln!("{text}");
            }
            eprint!("{}", usage());
            2
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
