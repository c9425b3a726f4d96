//! Updates the loader's cache of the image: with the host's ldconfig in a sandbox, or without a program.

#![forbid(unsafe_code)]

pub(super) mod builtin;
mod drop_in;
mod explain;
mod filter;
mod folders;
pub(crate) mod output;
pub(crate) mod program;
mod run;
mod snapshot;
mod watch;

pub(super) use folders::Folders;
pub use run::PreparedLdconfig;
pub(super) use run::{Bounds, Program, RunningLdconfig};
pub use snapshot::Snapshot;
