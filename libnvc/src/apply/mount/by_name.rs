//! Calls mount(2), which only takes names, on descriptors.
//!
//! The names are those of our own descriptors, relative to a /proc/thread-self/fd that was opened before entering the
//! container, so the image cannot influence them.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::fchdir;

use crate::sys::mount::{self, MountAttributes};

/// Returns a descriptor's name in the working directory, which must be this thread's /proc/thread-self/fd.
pub(super) fn name(fd: BorrowedFd<'_>) -> String {
    fd.as_raw_fd().to_string()
}

/// Binds a source onto a target, without restrictions; the working directory must be as for [`name`].
pub(super) fn bind(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let none = None::<&str>;
    mount(
        Some(name(source).as_str()),
        name(target).as_str(),
        none,
        MsFlags::MS_BIND,
        none,
    )
}

/// Makes a mount read-only or writable; `root` refers to its root.
pub(in crate::apply) fn make_read_only(
    root: BorrowedFd<'_>,
    is_read_only: bool,
    descriptors: &OwnedFd,
) -> Result<(), Errno> {
    let (nothing, read_only) = (MountAttributes::empty(), MountAttributes::RDONLY);
    let (set, clear) = if is_read_only {
        (read_only, nothing)
    } else {
        (nothing, read_only)
    };
    match mount::set_attributes(root, set, clear, None) {
        Err(Errno::ENOSYS) => {}
        done => return done,
    }
    let attributes = mount::attributes(root)?.difference(clear) | set;
    fchdir(descriptors)?;
    mount::remount(name(root).as_str(), attributes)
}

/// Changes the propagation of the mount whose root a descriptor refers to.
pub(in crate::apply) fn set_propagation(
    root: BorrowedFd<'_>,
    propagation: MsFlags,
    descriptors: &OwnedFd,
) -> Result<(), Errno> {
    let nothing = MountAttributes::empty();
    match mount::set_attributes(root, nothing, nothing, Some(propagation.bits())) {
        Err(Errno::ENOSYS) => {}
        done => return done,
    }
    let none = None::<&str>;
    fchdir(descriptors)?;
    mount(none, name(root).as_str(), none, propagation, none)
}
