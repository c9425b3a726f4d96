//! `nvidia-docker-plugin`: says over HTTP what the machine's GPUs are and do, and gives docker the driver as a volume.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, plugin};

fn main() -> ExitCode {
    // The question to NVML is this program, executed once more.
    serve_if_asked();
    libnvc::await_children();
    log_line::take_warnings();
    ExitCode::from(plugin::run())
}
