//! Decides whether a rootless engine's container can do without device rules.
//!
//! In a user namespace no process may load device programs: neither we nor the engine. All filters are the host's, on
//! cgroups above the engine's, and so apply to the caller too: what the caller may open, the container may open.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstat;
use nix::unistd::{AccessFlags, faccessat};

use crate::error::Error;
use crate::host::{DriverRoot, in_user_namespace};
use crate::inroot;
use crate::path::HostPath;

/// Returns true if the caller is in a user namespace and may open all these nodes of the host, as [`usage`] says.
///
/// No node is opened, which could take seconds: access(2) asks the device filters too.
pub(in crate::apply) fn can_open(root: &DriverRoot, nodes: &[&HostPath]) -> bool {
    if !in_user_namespace() {
        return false;
    }
    let Ok(descriptors) = inroot::own_descriptors() else {
        return false;
    };
    nodes.iter().all(|node| {
        root.resolve(node).is_ok_and(|fd| {
            let name = fd.as_raw_fd().to_string();
            let name = name.as_str();
            let access = fstat(&fd).map(|facts| usage(facts.st_mode));
            access
                .is_ok_and(|access| faccessat(&descriptors, name, access, AtFlags::empty()).is_ok())
        })
    })
}

/// Returns how a node of this mode is opened: a node without write permission, as MIG's capabilities have, is only read.
pub(in crate::apply) fn usage(mode: u32) -> AccessFlags {
    match mode & 0o222 {
        0 => AccessFlags::R_OK,
        _ => AccessFlags::R_OK | AccessFlags::W_OK,
    }
}

/// Returns true if rules could not be changed for lack of privilege.
pub(in crate::apply) fn is_for_privilege(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_nobody_may_write_is_read() {
        let both = AccessFlags::R_OK | AccessFlags::W_OK;
        assert_eq!(usage(0o20_444), AccessFlags::R_OK);
        assert_eq!(usage(0o20_666), both);
        assert_eq!(usage(0o20_660), both);
        // Its modes keep users out; a device rule would not let them in.
        assert_eq!(usage(0o20_644), both);
    }
}
