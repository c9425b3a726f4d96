//! Provides the common parts of the container toolkit's programs: the runtime hook, the OCI runtime, `nvidia-ctk` and
//! `nvidia-cdi-hook`.
//!
//! The programs are thin: each reads its input, calls this crate and [libnvc](../libnvc/index.html),
//! and writes its output. Nothing here parses a command line.
#![forbid(unsafe_code)]

// the administrator's policy
pub mod config;

// the container's request
pub mod image;

// the ways to serve it
pub mod csv;
pub mod driver_files;
pub mod gated;
pub mod mode;
pub mod platform;
mod session;
pub mod this_machine;

// files read and edited
pub mod cdi;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "generate")]
pub mod generate;
pub mod hostfile;
pub mod oci;

// used everywhere
pub mod cause;
pub mod hook_program;
pub mod nodes;
pub mod ours;
pub mod programs;
mod uuid;
