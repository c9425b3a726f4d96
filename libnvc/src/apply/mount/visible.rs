//! Checks that the path of each mount still leads to it.
//!
//! A mount on a directory hides what the image has in it, and the image's links can lead through that directory, to
//! this mount or to another one.

use std::os::fd::AsFd;

use nix::sys::stat::SFlag;

use crate::apply::journal::{Journal, Mark};
use crate::apply::mount::target::{Target, Tree, is_on_procfs, replaced};
use crate::directory;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, Identity, kind};
use crate::path::ContainerPath;

/// A mount, and the path at which it must be visible.
pub(in crate::apply) struct VisibleMount<'a> {
    pub(in crate::apply) at: &'a ContainerPath,
    /// Identifies its root.
    identity: Identity,
    hidden: HiddenContent,
}

/// What a mount on a target hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum HiddenContent {
    /// Nothing: a file, or an empty directory.
    Nothing,
    /// A directory of procfs.
    Procfs,
    /// A directory in which the image can have links, or directories on the way to other places.
    ImageDirectory,
}

impl HiddenContent {
    /// Returns what a mount on a target will hide.
    pub(in crate::apply) fn below(target: &Target) -> Self {
        match &target.found {
            Some(found) if kind(found) == SFlag::S_IFDIR => {}
            _ => return Self::Nothing,
        }
        if is_on_procfs(target.fd.as_fd()).unwrap_or(false) {
            return Self::Procfs;
        }
        // `.` and `..` are listed too.
        let listed = inroot::open_to_list(&target.fd)
            .and_then(|fd| directory::list(fd.as_fd(), &mut { 2 }, |_| {}));
        match listed {
            Ok(()) => Self::Nothing,
            Err(_) => Self::ImageDirectory,
        }
    }
}

impl<'a> VisibleMount<'a> {
    /// Checks that a new mount does not hide the way to itself.
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`]: it does.
    pub(in crate::apply) fn new(
        at: &'a ContainerPath,
        identity: Identity,
        hidden: HiddenContent,
        tree: &Tree<'_>,
    ) -> Result<Self> {
        let mounted = Self {
            at,
            identity,
            hidden,
        };
        if hidden == HiddenContent::Nothing || mounted.found(tree) == Some(identity) {
            return Ok(mounted);
        }
        let error = Error::new(ErrorKind::NotFound, "mount operation failed");
        let error = error.of(at.below(tree.rootfs).display());
        Err(error.because("the image's links lead to it through the directory that it would hide"))
    }

    /// Does the same for a filesystem that was mounted since a mark; None if an earlier run's is there.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub(in crate::apply) fn since(
        mark: Mark,
        at: &'a ContainerPath,
        hidden: HiddenContent,
        tree: &Tree<'_>,
        journal: &Journal<'_>,
    ) -> Result<Option<Self>> {
        let Some(root) = journal.mount_since(mark) else {
            return Ok(None);
        };
        let failed = |errno| Error::file("stat failed", at.below(tree.rootfs), errno);
        let identity = inroot::identity_of(root).map_err(failed)?;
        Self::new(at, identity, hidden, tree).map(Some)
    }

    /// Returns true if it may hide the way to other mounts.
    pub(in crate::apply) fn hides_images(&self) -> bool {
        self.hidden == HiddenContent::ImageDirectory
    }

    /// Returns the identity of the file at its path.
    fn found(&self, tree: &Tree<'_>) -> Option<Identity> {
        let found = tree.root.resolve(self.at.as_path());
        found.and_then(inroot::identity_of).ok()
    }
}

/// Checks that the paths of mounts, from the number `first` on, still lead to them; None means an undone mount.
///
/// # Errors
/// Kind [`ErrorKind::NotFound`]: a later mount hides the way, or ldconfig has replaced the mount point.
pub(in crate::apply) fn all_visible(
    mounted: &[Option<VisibleMount<'_>>],
    first: usize,
    tree: &Tree<'_>,
) -> Result<()> {
    for mount in mounted.iter().skip(first).flatten() {
        let found = mount.found(tree);
        let mut all = mounted.iter().flatten();
        // An image's links can make two paths lead to one place. The last mount is visible there.
        if !found.is_some_and(|found| all.any(|other| other.identity == found)) {
            return Err(replaced(&mount.at.below(tree.rootfs)));
        }
    }
    Ok(())
}
