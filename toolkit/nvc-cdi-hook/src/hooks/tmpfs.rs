//! Makes small tmpfs mounts that cover files of /proc in a container.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};

use crate::root::own_name;
use crate::volume::{MOUNTS, mount_id};

/// Makes a detached tmpfs.
pub(super) fn new(inodes: usize) -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "mode", "0555")?;
    fsconfig_set_string(&context, "size", "256k")?;
    fsconfig_set_string(&context, "nr_inodes", format!("{inodes}"))?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Attaches a detached mount.
pub(super) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let by_descriptor =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", by_descriptor)
}

/// Ensures that a mount on this file or directory of the container is not visible elsewhere.
///
/// A mount on a *shared* mount appears at all its peers: with `-v /proc:/proc:rshared`, on the host. So that mount is
/// made a slave of its peers.
pub(super) fn confine(target: BorrowedFd<'_>) -> Result<(), Errno> {
    let id = mount_id(target)?;
    let table = libnvc::read_kernel_file(MOUNTS).map_err(|_| Errno::IO)?;
    if !is_shared(&String::from_utf8_lossy(&table), id) {
        return Ok(());
    }
    let top = top_of_mount(target, id)?;
    mount_change(own_name(top.as_fd()), MountPropagationFlags::DOWNSTREAM)
}

/// Returns true if a mount in a mountinfo has an optional field `shared:N`.
fn is_shared(table: &str, id: u64) -> bool {
    let mut lines = table.lines();
    let line = lines.find(|line| line.split(' ').next().and_then(|id| id.parse().ok()) == Some(id));
    let fields = line.into_iter().flat_map(|line| line.split(' ').skip(6));
    let mut optional = fields.take_while(|field| *field != "-");
    optional.any(|field| field.starts_with("shared:"))
}

/// Returns a descriptor of the top of the mount that a file or directory is on.
fn top_of_mount(target: BorrowedFd<'_>, id: u64) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut top = rustix::io::fcntl_dupfd_cloexec(target, 0)?;
    loop {
        let above = match openat(&top, "..", flags, Mode::empty()) {
            Ok(above) => above,
            // A file on another mount than its directory.
            Err(Errno::NOTDIR) => return Ok(top),
            Err(errno) => return Err(errno),
        };
        let (own, other) = (fstat(&top)?, fstat(&above)?);
        let is_same = (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino);
        if is_same || mount_id(above.as_fd())? != id {
            return Ok(top);
        }
        top = above;
    }
}

/// Clones a mount into a detached one.
pub(super) fn clone(found: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(found, "", flags)
}

/// Makes a mounted tmpfs read-only.
pub(super) fn seal(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    mount_remount(own_name(mount), flags, "")
}

/// Unmounts a tmpfs.
pub(super) fn detach(mount: &OwnedFd) -> Result<(), Errno> {
    unmount(own_name(mount.as_fd()), UnmountFlags::DETACH)
}

#[cfg(test)]
mod tests {
    use super::is_shared;

    #[test]
    fn shared_mounts_are_found() {
        let table = "21 1 0:5 / / rw shared:1 - ext4 x rw\n22 21 0:6 / /shared:1 rw master:1 - proc x rw\n\
            23 21 0:6 / /a rw - proc shared:1 rw\n24 21 0:7 / /b rw master:3 shared:4 - proc x rw\n";
        let shared = [21, 22, 23, 24, 25].map(|id| is_shared(table, id));
        assert_eq!(shared, [true, false, false, true, false]);
    }
}
