//! `nvidia-docker`: runs docker with GPUs in its containers.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, wrapper};

fn main() -> ExitCode {
    nvc_program::messages::take_panics();
    // The NVML query is this program, executed again.
    serve_if_asked();
    libnvc::await_children();
    log_line::take_warnings();
    ExitCode::from(wrapper::run())
}
