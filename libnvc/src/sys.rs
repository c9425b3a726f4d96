//! Wraps the raw system calls that nix lacks. Apart from `capi`, this is the only place for `unsafe`.
//!
//! Each block holds one operation; its SAFETY comment names the call's requirement and where it is met. Nothing here
//! decides policy.

#![allow(unsafe_code)]

#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))] // `testing` exports parts of it
pub(crate) mod bpf;
pub(crate) mod capabilities;
pub(crate) mod cuda;
pub(crate) mod descriptors;
pub(crate) mod dxcore;
pub(crate) mod execute;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod modprobe;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod nvml;
pub(crate) mod process;

pub(crate) mod sandbox;
pub(crate) mod seccomp;
pub(crate) mod spawn;
pub(crate) mod start;
pub mod xattr;
