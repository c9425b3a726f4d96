//! `gpu-kubelet-plugin`: gives GPUs to pods that claim them, as a driver of Kubernetes' Dynamic Resource Allocation.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

use nvc_node::run;

libnvc::main!(run);
