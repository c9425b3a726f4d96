//! The node's part of Kubernetes' Dynamic Resource Allocation: gives GPUs and MIG devices to pods.
//!
//! [`machine`] watches the driver, and `grants` writes what a container gets: both know nothing of Kubernetes. `devices`
//! describes the machine for the API server, which `api` speaks with; [`kubelet`] serves the kubelet, whose two calls
//! `claims` carries out. `sides` divides the program into two processes, `rights` says what each keeps, and [`run()`] puts
//! them together.

#![forbid(unsafe_code)]

// without Kubernetes
mod drafts;
mod grants;
mod lock;
pub mod machine;

// with it
mod api;
mod causes;
mod claims;
mod devices;
pub mod kubelet;
mod proto;

pub mod options;
mod rights;
mod run;
mod sides;

pub use run::run;
