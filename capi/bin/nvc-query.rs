//! `nvc-query`: queries NVML for libnvidia-container.so, which executes it; does nothing for other callers.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    libnvc::host::query::serve_if_asked();
    nvc_program::messages::write_line(
        "nvc-query: the library libnvidia-container runs this program; by itself it does nothing",
    );
    ExitCode::FAILURE
}
