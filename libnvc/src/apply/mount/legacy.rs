//! Binds by name on kernels and in sandboxes without detached mounts (before Linux 5.12).
//!
//! mount(2) only takes names ([`by_name`](super::by_name)). Between the bind and the remount the mount is
//! writable, and the source must be reopened in the container's namespace, which works only while the host's
//! filesystems are visible there (docs/kernel-features.md). The new mount itself can only be reached by its name in the
//! image, so that name's target is checked before it is used ([`proof`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::fchdir;

use crate::apply::journal::Journal;
use crate::apply::mount::attach::Attacher;
use crate::apply::mount::by_name;
use crate::apply::mount::source::{Location, ReadySource, locked};
use crate::apply::mount::target::{Target, Tree};
use crate::error::{Error, Result};
use crate::host::DriverRoot;
use crate::inroot::identity_of;
use crate::sys::mount::{MountAttributes, attributes, remount};

mod proof;

use proof::Before;

/// Binds a source onto a target and restricts the mount.
pub(in crate::apply) fn bind(
    source: &ReadySource,
    driver_root: &DriverRoot,
    tree: &Tree<'_>,
    target: &Target,
    attacher: &mut Attacher<'_>,
    place: &Path,
    journal: &mut Journal<'_>,
) -> Result<()> {
    attacher.confine(target, place, journal)?;
    let again = open_again(source, driver_root, tree)?;
    let attributes = (source.attributes, source.must_clear);
    let (again, name) = (again.as_fd(), &source.name);
    let mounted = file(again, name, target, attacher, place, attributes)?;
    journal.mounted(mounted);
    Ok(())
}

/// Mounts an empty tmpfs on a target; returns a descriptor of its root.
pub(in crate::apply) fn tmpfs(
    mode: u32,
    target: &Target,
    attacher: &Attacher<'_>,
    place: &Path,
    attributes: MountAttributes,
) -> Result<OwnedFd> {
    let failed = |errno| Error::file("mount operation failed", place, errno);
    fchdir(attacher.descriptors).map_err(failed)?;
    let before = Before::new(attacher).map_err(failed)?;
    let data = format!("mode={mode:o}");
    mount(
        Some("tmpfs"),
        by_name::name(target.fd.as_fd()).as_str(),
        Some("tmpfs"),
        attributes.flags(),
        Some(data.as_str()),
    )
    .map_err(failed)?;
    before.find(target, place, |found| {
        Ok(fstatfs(found)?.filesystem_type() == TMPFS_MAGIC)
    })
}

/// Binds an open file, or a directory, onto a target; sets and clears attributes of the mount and returns a descriptor
/// of its root.
pub(in crate::apply) fn file(
    source: BorrowedFd<'_>,
    name: &Path,
    target: &Target,
    attacher: &Attacher<'_>,
    place: &Path,
    (set, clear): (MountAttributes, MountAttributes),
) -> Result<OwnedFd> {
    let failed = |errno| Error::file("mount operation failed", place, errno);
    let identity = identity_of(source).map_err(failed)?;
    fchdir(attacher.descriptors).map_err(failed)?;
    let before = Before::new(attacher).map_err(failed)?;
    by_name::bind(source, target.fd.as_fd()).map_err(failed)?;
    let is_source = |found: BorrowedFd<'_>| Ok(identity_of(found)? == identity);
    let mounted = before.find(target, place, is_source)?;
    if let Err(errno) = restrict(mounted.as_fd(), set, clear) {
        let hindered = has(mounted.as_fd()).intersects(clear);
        let error = failed(errno).with_cleanup(undo(mounted.as_fd(), place));
        return Err(if errno == Errno::EPERM && hindered {
            error.hint(locked(name))
        } else {
            error
        });
    }
    Ok(mounted)
}

fn undo(mounted: BorrowedFd<'_>, place: &Path) -> Option<Error> {
    let undone = umount2(by_name::name(mounted).as_str(), MntFlags::MNT_DETACH);
    undone
        .map_err(|errno| Error::file("unmounting failed", place, errno))
        .err()
}

/// Opens a source in the container's namespace and checks that it is the one that was checked before.
fn open_again(source: &ReadySource, root: &DriverRoot, tree: &Tree<'_>) -> Result<OwnedFd> {
    let failed = |errno| {
        let error = Error::file("mount operation failed", &source.name, errno);
        error.hint("this kernel needs the host's files to be visible in the container: configure it before it pivots")
    };
    let fd = match &source.location {
        Location::Host(path) => DriverRoot::open(root.path())?
            .resolve(path)
            .map_err(failed)?,
        Location::Image(path) => tree.root.resolve_nofollow(path.as_path()).map_err(failed)?,
    };
    if identity_of(&fd).map_err(failed)? == source.identity {
        Ok(fd)
    } else {
        Err(failed(Errno::ESTALE))
    }
}

/// Sets and clears attributes. The others stay: a remount replaces all of them, and in a user namespace those inherited
/// from the source's mount may not be cleared.
fn restrict(
    mounted: BorrowedFd<'_>,
    set: MountAttributes,
    clear: MountAttributes,
) -> Result<(), Errno> {
    let none = None::<&str>;
    let name = by_name::name(mounted);
    let attributes = set | has(mounted).difference(clear);
    remount(name.as_str(), attributes)?;
    mount(none, name.as_str(), none, MsFlags::MS_PRIVATE, none)
}

/// Returns the attributes that a mount has inherited from its source; empty if they are unknown.
fn has(mounted: BorrowedFd<'_>) -> MountAttributes {
    attributes(mounted).unwrap_or(MountAttributes::empty())
}
