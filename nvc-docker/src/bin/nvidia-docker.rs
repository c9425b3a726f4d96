//! `nvidia-docker`: docker, with GPUs in the containers it starts.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, wrapper};

fn main() -> ExitCode {
    // The question to NVML is this program, executed once more.
    serve_if_asked();
    libnvc::await_children();
    log_line::take_warnings();
    ExitCode::from(wrapper::run())
}
