//! `nvidia-docker`: runs docker with GPUs in its containers.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, wrapper};

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    nvc_program::messages::take_panics();
    // The NVML query is this program, executed again.
    serve_if_asked();
    log_line::take_warnings();
    wrapper::run()
}
