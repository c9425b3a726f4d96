//! The node's part of Kubernetes' Dynamic Resource Allocation: gives GPUs and MIG devices to pods.
//!
//! [`machine`] watches the driver and knows nothing of Kubernetes; [`kubelet`] serves the kubelet's calls. [`run`] puts
//! them together.

#![forbid(unsafe_code)]

pub mod machine;

pub mod kubelet;
pub mod options;
mod run;

pub use run::run;
