//! Serves the driver's files to docker as a volume: a tmpfs of read-only bind mounts, made when a container starts.
//!
//! [`protocol`] parses docker's requests and formats the answers, [`store`] has the
//! volumes, [`contents`] finds the files, [`tree`] mounts them, [`keeper`] is the only thread with the capability to
//! mount.

mod contents;
mod keeper;
mod protocol;
mod store;
mod tree;

pub(super) use keeper::{Keeper, give_up_capabilities};
pub(super) use protocol::Volumes;

/// Passes a foreign body to the parser, for fuzzing.
pub(super) fn parse(bytes: &[u8]) {
    let _ = protocol::VolumeRequest::read(bytes);
}
