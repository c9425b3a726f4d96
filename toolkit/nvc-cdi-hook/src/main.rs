//! `nvidia-cdi-hook`: runs as root in a hostile root, so it reads neither environment nor configuration.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use nvc_cdi_hook::Verbosity;

fn main() -> ExitCode {
    nvc_program::messages::take_panics();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    ExitCode::from(nvc_cdi_hook::run(&words, Verbosity::default()))
}
