//! Wraps the raw system calls that nix does not have; with `capi`, the only place for `unsafe`.
//!
//! One operation a block, with the requirement of the call and where it is met. Nothing here decides anything.

#![allow(unsafe_code)]

pub(crate) mod bpf;
pub(crate) mod capabilities;
pub(crate) mod cuda;
pub(crate) mod descriptors;
pub(crate) mod dxcore;
pub(crate) mod fork;
pub(crate) mod modprobe;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod nvml;
pub(crate) mod process;
pub(crate) mod sandbox;
pub(crate) mod spawn;
pub(crate) mod start;
