//! Warns of nodes that the container's process may not open: nodes of a group, or of another user namespace.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::SFlag;
use nix::unistd::{Uid, faccessat, setfsuid};

use crate::apply::cgroup::rootless;
use crate::apply::mount::target::Tree;
use crate::apply::volumes::rights::Rights;
use crate::container::Container;
use crate::host::mapped;
use crate::inroot::{self, kind};
use crate::path::ContainerPath;
use crate::read_file;
use crate::request::ProcessUser;
use crate::sys::sandbox::set_groups;

/// Asks the kernel for each node among the mounts, as the container's process with its groups. The calling thread is the
/// container's root already, as its process still is when a runtime calls hooks.
pub(super) fn warn<'a>(
    mounts: impl Iterator<Item = &'a ContainerPath>,
    tree: &Tree<'_>,
    container: &Container,
    descriptors: BorrowedFd<'_>,
) {
    let own = nix::unistd::getgroups().unwrap_or_default();
    let own: Vec<_> = own.iter().map(|group| group.as_raw()).collect();
    let user = outside(container);
    let user = user.as_ref();
    let groups = user.map_or_else(|| groups(container), |user| Some(user.groups.clone()));
    // Without privileges the caller's groups are the container's.
    let has_groups = groups.is_some_and(|groups| set_groups(&groups).is_ok());
    // Nodes are nowhere else, and a container has many mounts.
    let closed: Vec<String> = mounts
        .filter(|at| at.as_path().starts_with("/dev"))
        .filter_map(|at| closed(at, tree, user, descriptors).ok().flatten())
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

/// Returns the user that the container's process will have, with the caller's numbers, and without groups that have none.
/// None if the user has none, or is the process's already.
pub(super) fn outside(container: &Container) -> Option<ProcessUser> {
    let user = container.user.as_ref()?;
    let read = |name| container.process.read(name).ok();
    let (users, groups) = (read("uid_map")?, read("gid_map")?);
    let of = |map: &[u8], id| mapped(&String::from_utf8_lossy(map), id);
    let groups = user.groups.iter().filter_map(|group| of(&groups, *group));
    Some(ProcessUser {
        uid: of(&users, user.uid)?,
        groups: groups.collect(),
    })
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
    user: Option<&ProcessUser>,
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
    let answer = match user {
        Some(user) => Rights::AsOwner.act(|| as_user(user.uid, ask)),
        None => tree.authority.as_containers_root(ask),
    };
    // Device rules are another matter, and have another error.
    let is_closed = answer == Err(Errno::EACCES);
    Ok(is_closed.then(|| {
        let (mode, user, group) = (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid);
        format!("{at} (mode {mode:04o}, owner {user}:{group})")
    }))
}

/// Runs an action as another user of files. Without the right to become it, the action is this thread's.
fn as_user<T>(uid: u32, action: impl FnOnce() -> T) -> T {
    let own = setfsuid(Uid::from_raw(uid));
    let done = action();
    setfsuid(own);
    done
}
