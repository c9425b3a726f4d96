//! `nvidia-docker-plugin`: reports the machine's GPUs and their state over HTTP, and serves the driver as a docker
//! volume.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, plugin};

fn main() -> ExitCode {
    nvc_program::messages::take_panics();
    // The NVML query is this program, executed again.
    serve_if_asked();
    libnvc::await_children();
    log_line::take_warnings();
    ExitCode::from(plugin::run())
}
