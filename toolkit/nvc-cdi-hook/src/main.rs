//! `nvidia-cdi-hook`: runs as root in a hostile root, so it reads neither environment nor configuration.

#![forbid(unsafe_code)]
#![cfg_attr(all(target_os = "linux", target_env = "gnu", not(test)), no_main)] // see libnvc::main!

use nvc_cdi_hook::Verbosity;

libnvc::main!(main_with_status);

/// Runs the program; returns its exit code.
fn main_with_status() -> u8 {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    nvc_cdi_hook::run(&words, Verbosity::default())
}
