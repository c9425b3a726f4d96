//! `nvidia-cdi-hook`: runs as root in a hostile root, so it reads neither environment nor configuration.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

use nvc_cdi_hook::Verbosity;

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    nvc_program::messages::take_panics();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    nvc_cdi_hook::run(&words, Verbosity::default())
}
