//! Moves the calling thread into a container: its mount namespace, its umask, its owner.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::apply::volumes::authority::{self, Callers};
use crate::container::Container;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, RootDir, identity_of};
use crate::sys::capabilities::{CHOWN, Capabilities, DAC_OVERRIDE, FOWNER, only};

/// Opens this thread's `/proc/thread-self/fd`: names for descriptors, even if the container's /proc does not have them.
pub(super) fn own_descriptors() -> Result<OwnedFd> {
    unshare(CloneFlags::CLONE_FS)
        .map_err(|errno| Error::system("namespace association failed", errno))?;
    inroot::own_descriptors()
        .map_err(|errno| Error::file("open failed", inroot::OWN_DESCRIPTORS, errno))
}

/// Moves this thread into the container's mount namespace; returns its root and the caller's umask.
pub(super) fn enter(container: &Container) -> Result<(RootDir, u32)> {
    let namespace = &container.namespace;
    if !namespace.is_callers {
        setns(&namespace.fd, CloneFlags::CLONE_NEWNS).map_err(|errno| {
            Error::file(
                "namespace association failed",
                container.process.path().join("ns/mnt"),
                errno,
            )
        })?;
    }
    // Affects only this thread, whose filesystem state is unshared.
    let umask = umask(Mode::empty()).bits();
    let rootfs = container.rootfs();
    let failed = |errno| Error::file("open failed", rootfs, errno);
    let root = match container.process.directory() {
        Some(_) => RootDir::open(rootfs),
        None => container.process.root().try_clone(),
    };
    let root = root.map_err(failed)?;
    if identity_of(&root) != identity_of(container.process.root()) {
        let text = format!("{} was replaced by another directory", rootfs.display());
        return Err(Error::new(ErrorKind::NotFound, "namespace association failed").because(text));
    }
    Ok((root, umask))
}

/// Makes files that this thread creates belong to the container's owner: creating as root and changing the owner
/// afterwards fails on id-mapped filesystems.
pub(super) fn become_owner((uid, gid): (u32, u32), callers: &mut Callers) -> Result<()> {
    if callers.lowers() && !authority::drop_groups(gid) {
        // They could have permissions that the owner lacks.
        callers.spare_volumes();
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let failed = |errno| Error::system("privilege change failed", errno);
    if gid != nix::unistd::getegid() {
        setfsgid(gid);
        // The call reports no failure, but the next call returns the current id.
        if setfsgid(gid) != gid {
            return Err(failed(Errno::EPERM));
        }
    }
    if uid == nix::unistd::geteuid() {
        return Ok(());
    }
    setfsuid(uid);
    if setfsuid(uid) != uid {
        return Err(failed(Errno::EPERM));
    }
    // Leaving uid 0 removed the file capabilities from the effective set; the owner may lack write permission in its
    // own tree (a tmpfs root of mode 0555), and files of other users that ldconfig replaced are restored with their
    // owners.
    let needed = only(DAC_OVERRIDE) | only(CHOWN) | only(FOWNER);
    let mut own = Capabilities::read().map_err(failed)?;
    own.effective |= own.permitted & needed;
    own.set().map_err(failed)
}
