//! Checks that a name leads to the mount that was just made, before anything is done with what it leads to.
//!
//! mount(2) gives no descriptor of the new mount. The descriptor of its mount point stays below it, so the only way to its
//! root is the mount point's name. A process in another mount namespace that sees the same directory, a second container
//! with the same volume say, may rename what is a mount point here and nowhere else, and then the name leads to another
//! mount: that one would be restricted, and the new one would stay writable. So the new mount must be one that was not
//! there before, and its root must be what was mounted. If it is not, the new mount is removed by the descriptor of the
//! mount point, to which names mean nothing.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::unistd::fchdir;

use super::name;
use crate::apply::attach::Attacher;
use crate::apply::target::{Target, open_child, replaced};
use crate::error::{Error, Result};
use crate::sys::mount;

/// The mounts of this thread's namespace before a new one is made.
pub(super) struct Before<'a> {
    ids: HashSet<u64>,
    attacher: &'a Attacher<'a>,
}

impl<'a> Before<'a> {
    pub(super) fn new(attacher: &'a Attacher<'a>) -> Result<Self, Errno> {
        let ids = attacher.mount_ids()?;
        Ok(Self { ids, attacher })
    }

    /// Opens the root of the mount that was just made on a target, if the target's name leads there and `is_it` says that
    /// it is what was mounted. Otherwise nothing stays mounted.
    pub(super) fn find(
        &self,
        target: &Target,
        place: &Path,
        is_it: impl Fn(BorrowedFd<'_>) -> Result<bool, Errno>,
    ) -> Result<OwnedFd> {
        let found = open_child(target.directory.as_fd(), &target.name);
        let found = found.and_then(|found| {
            let proved = self.is_new_root(found.as_fd())? && is_it(found.as_fd())?;
            Ok(proved.then_some(found))
        });
        let error = match found {
            Ok(Some(root)) => return Ok(root),
            Ok(None) | Err(Errno::ENOENT) => replaced(place),
            Err(errno) => Error::file("mount operation failed", place, errno),
        };
        let removed = self.remove(target);
        let removed = removed.map_err(|errno| Error::file("unmounting failed", place, errno));
        Err(error.with_cleanup(removed.err()))
    }

    /// Whether a descriptor is at the root of a mount that was not there before.
    ///
    /// Before Linux 5.8 nothing says whether it is the root. It is: its name was looked up in a directory of a mount that
    /// was there before, and one step into another mount leads to its root.
    fn is_new_root(&self, found: BorrowedFd<'_>) -> Result<bool, Errno> {
        let is_new = !self.ids.contains(&self.attacher.mount_id(found)?);
        Ok(is_new && mount::place(found)?.is_root != Some(false))
    }

    /// Removes the new mount from the target, which need not have its name any more.
    fn remove(&self, target: &Target) -> Result<(), Errno> {
        let now = || -> Result<HashSet<u64>, Errno> {
            let ids = self.attacher.mount_ids()?;
            Ok(ids.difference(&self.ids).copied().collect())
        };
        let new = now()?;
        // Whoever removes a mount point in another namespace removes what is mounted on it everywhere.
        if new.is_empty() {
            return Ok(());
        }
        fchdir(self.attacher.descriptors)?;
        // umount2(2) goes from the directory or file that the descriptor is at to the topmost mount on it.
        umount2(name(target.fd.as_fd()).as_str(), MntFlags::MNT_DETACH)?;
        if now()?.is_superset(&new) {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }
}
