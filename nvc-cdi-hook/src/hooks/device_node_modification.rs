//! Covers the driver's `params` with a copy that tells programs not to make device nodes.
//!
//! The copy is in a tmpfs that is mounted for a moment over the directory, made read-only, and detached when a bind mount
//! of its one file is in place: nothing stays in the container but that mount.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount,
    open_tree, unmount,
};

use crate::arguments::Given;
use crate::report::Report;
use crate::root::{Root, own_name, read};
use crate::{Failure, Result, container};

const PARAMS: &str = "/proc/driver/nvidia/params";
const ON: &str = "ModifyDeviceFiles: 1";
const OFF: &str = "ModifyDeviceFiles: 0";
const LARGEST: u64 = 1 << 20;

pub(super) fn run(given: &Given, report: &mut Report) -> Result<()> {
    let root = container(given)?;
    let host = match std::fs::read(PARAMS) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        host => host.map_err(|error| Failure::of("open failed", PARAMS, error))?,
    };
    let Some(text) = changed(&String::from_utf8_lossy(&host)) else {
        report.step("the driver does not have programs make device nodes");
        return Ok(());
    };
    let path = Path::new(PARAMS);
    let missing = || root.failure("open failed", path, Errno::NOENT);
    let target = root.find(path)?.ok_or_else(missing)?;
    let failed = |errno| root.failure("mounting failed", path, errno);
    // An earlier hook was here.
    if read(target.as_fd(), LARGEST).is_ok_and(|now| now == text.as_bytes()) {
        return Ok(());
    }
    cover(&root, target.as_fd(), text.as_bytes()).map_err(failed)
}

/// The text with the line changed. None if it has no such line.
fn changed(text: &str) -> Option<String> {
    if !text.lines().any(|line| line == ON) {
        return None;
    }
    let lines = text.lines().map(|line| if line == ON { OFF } else { line });
    Some(lines.map(|line| format!("{line}\n")).collect())
}

fn cover(root: &Root, target: BorrowedFd<'_>, text: &[u8]) -> Result<(), Errno> {
    let directory = Path::new(PARAMS).parent().unwrap_or(Path::new("/"));
    let below = root.find(directory).ok().flatten().ok_or(Errno::NOENT)?;
    let tmpfs = new_tmpfs()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o444);
    let file = openat(&tmpfs, "params", flags, mode)?;
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    drop(file);
    let by_descriptor =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    // Only a mount that is attached can be cloned.
    move_mount(&tmpfs, "", &below, "", by_descriptor)?;
    let clone = restrict_and_clone(&tmpfs);
    let detached = unmount(own_name(tmpfs.as_fd()), UnmountFlags::DETACH);
    let clone = clone?;
    detached?;
    move_mount(&clone, "", target, "", by_descriptor)
}

fn restrict_and_clone(tmpfs: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    mount_remount(own_name(tmpfs.as_fd()), flags, "")?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    open_tree(tmpfs, "params", flags)
}

fn new_tmpfs() -> Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "mode", "0555")?;
    fsconfig_set_string(&context, "size", "64k")?;
    fsconfig_set_string(&context, "nr_inodes", "4")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn only_the_exact_line_counts() {
        assert_eq!(
            changed("A: 1\nModifyDeviceFiles: 1").as_deref(),
            Some("A: 1\nModifyDeviceFiles: 0\n")
        );
        assert_eq!(changed("ModifyDeviceFiles: 10\n"), None);
        assert_eq!(changed("ModifyDeviceFiles: 0\n"), None);
    }
}
