//! `nvidia-docker`: runs docker with GPUs in its containers.

#![forbid(unsafe_code)]
#![cfg_attr(all(target_os = "linux", target_env = "gnu", not(test)), no_main)] // see libnvc::main!

use libnvc::host::query::serve_if_asked;
use nvc_docker::{log_line, wrapper};

libnvc::main!(run);

fn run() -> u8 {
    // The NVML query is this program, executed again.
    serve_if_asked();
    libnvc::await_children();
    log_line::take_warnings();
    wrapper::run()
}
