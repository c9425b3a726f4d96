//! Warns of nodes that the container's process may not open: nodes of a group, or of another user namespace.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::SFlag;
use nix::unistd::faccessat;

use crate::apply::cgroup::rootless;
use crate::apply::mount::target::Tree;
use crate::container::Container;
use crate::inroot::{self, kind};
use crate::path::ContainerPath;
use crate::read_file;
use crate::sys::sandbox::set_groups;

/// Asks the kernel for each node among the mounts, as the container's process with its groups. The calling thread has the process's user
/// already.
pub(super) fn warn<'a>(
    mounts: impl Iterator<Item = &'a ContainerPath>,
    tree: &Tree<'_>,
    container: &Container,
    descriptors: BorrowedFd<'_>,
) {
    let own = nix::unistd::getgroups().unwrap_or_default();
    let own: Vec<_> = own.iter().map(|group| group.as_raw()).collect();
    // Without privileges the caller's groups are the container's.
    let has_groups = groups(container).is_some_and(|groups| set_groups(&groups).is_ok());
    // Nodes are nowhere else, and a container has many mounts.
    let closed: Vec<String> = mounts
        .filter(|at| at.as_path().starts_with("/dev"))
        .filter_map(|at| closed(at, tree, descriptors).ok().flatten())
        .collect();
    if has_groups && let Err(errno) = set_groups(&own) {
        log::debug!("the groups of the container's process stay: {errno}");
    }
    if !closed.is_empty() {
        log::warn!(
            "the container's process may not open {}: load the kernel module nvidia with NVreg_DeviceFileMode=0666, or \
             give the process the nodes' group",
            closed.join(", ")
        );
    }
}

/// Returns the supplementary groups of the container's process; None if the caller is in the container.
fn groups(container: &Container) -> Option<Vec<u32>> {
    let status = container.process.read("status").ok()?;
    let groups = read_file::line_of(&status, b"Groups:")?.split_whitespace();
    groups.map(|group| group.parse().ok()).collect()
}

/// Describes a node that may not be opened.
fn closed(
    at: &ContainerPath,
    tree: &Tree<'_>,
    descriptors: BorrowedFd<'_>,
) -> Result<Option<String>, Errno> {
    let found = tree.root.resolve(at.as_path())?;
    let stat = inroot::stat(found.as_fd())?;
    if kind(&stat) != SFlag::S_IFCHR {
        return Ok(None);
    }
    let usage = rootless::usage(stat.st_mode);
    let name = found.as_raw_fd().to_string();
    let ask = || faccessat(descriptors, name.as_str(), usage, AtFlags::AT_EACCESS);
    // Device rules are another matter, and have another error.
    let is_closed = tree.authority.as_containers_root(ask) == Err(Errno::EACCES);
    Ok(is_closed.then(|| {
        let (mode, user, group) = (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid);
        format!("{at} (mode {mode:04o}, owner {user}:{group})")
    }))
}
