//! Opens the sources of mounts, finds their targets, and attaches them.

#![forbid(unsafe_code)]

pub(crate) mod attach;
pub(super) mod by_name;
pub(super) mod legacy;
pub(super) mod reach;
pub(super) mod source;
pub(super) mod target;
pub(super) mod tmpfs;
pub(super) mod visible;
mod walk;
