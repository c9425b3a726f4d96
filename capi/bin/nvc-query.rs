//! `nvc-query`: queries NVML for libnvidia-container.so, which executes it; does nothing for other callers.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    libnvc::host::query::serve_if_asked();
    nvc_program::messages::write_line(
        "nvc-query: the library libnvidia-container runs this program; by itself it does nothing",
    );
    1
}
