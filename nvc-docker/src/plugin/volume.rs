//! Gives docker the driver's files as a volume: a tmpfs of read-only bind mounts, made when a container starts.
//!
//! [`protocol`] reads docker's requests and words the answers, [`store`] knows which volumes exist and who uses them,
//! [`contents`] finds the files, [`tree`] mounts them, [`keeper`] is the one thread that may.

mod contents;
mod keeper;
mod protocol;
mod sections;
mod store;
mod tree;

pub(super) use keeper::{Keeper, give_up_capabilities};
pub(super) use protocol::Volumes;

/// Gives a foreign body to the parser, for fuzzing.
pub(super) fn parse(bytes: &[u8]) {
    let _ = protocol::Request::read(bytes);
}
