//! `gpu-kubelet-plugin`: gives GPUs to pods that claim them, as a driver of Kubernetes' Dynamic Resource Allocation.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    nvc_program::messages::take_panics();
    0
}
