//! `nvidia-docker-plugin`: reports the machine's GPUs and their state over HTTP, and serves the driver as a docker
//! volume.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, plugin};

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    nvc_program::messages::take_panics();
    // The NVML query is this program, executed again.
    serve_if_asked();
    log_line::take_warnings();
    plugin::run()
}
