//! The node's part of Kubernetes' Dynamic Resource Allocation: gives GPUs and MIG devices to pods.
//!
//! [`machine`] watches the driver and knows nothing of Kubernetes.

#![forbid(unsafe_code)]

pub mod machine;
