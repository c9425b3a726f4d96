//! Attaches mounts to their mount points, without duplicates and without propagating to the host.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;

use crate::apply::journal::Journal;
use crate::apply::mount::by_name;
use crate::apply::mount::source::ReadySource;
use crate::apply::mount::target::Target;
use crate::error::{Error, Result};
use crate::inroot::{self, identity_of};
use crate::mount_id::{mount_id_by, mount_table};
use crate::mountinfo;
use crate::sys::mount::{self, MountAttributes};

/// Attaches mounts in the container's namespace.
pub(in crate::apply) struct Attacher<'a> {
    /// In the caller's own namespace, propagation is up to the caller.
    namespace_is_ours: bool,
    /// This thread's `/proc/thread-self/fd`.
    pub(in crate::apply) descriptors: &'a OwnedFd,
    /// Ids of shared mounts, for kernels without statmount(2); read when first needed.
    shared: Option<HashSet<u64>>,
    /// Ids of mounts that have been checked.
    confined: HashSet<u64>,
}

impl<'a> Attacher<'a> {
    pub(in crate::apply) fn new(namespace_is_ours: bool, descriptors: &'a OwnedFd) -> Self {
        Self {
            namespace_is_ours,
            descriptors,
            shared: None,
            confined: HashSet::new(),
        }
    }

    /// Drops cached facts about mounts, which were undone.
    pub(in crate::apply) fn forget(&mut self) {
        self.confined.clear();
    }

    /// Returns true if a source is already mounted on a target, with the required restrictions.
    pub(in crate::apply) fn is_mounted(&self, source: &ReadySource, target: &Target) -> bool {
        let same = target
            .found
            .is_some_and(|found| inroot::identity(&found) == source.identity);
        same && self.is_mount_with(target, source.attributes)
    }

    /// Returns true if a target is the root of a mount that has at least these attributes.
    pub(in crate::apply) fn is_mount_with(
        &self,
        target: &Target,
        attributes: MountAttributes,
    ) -> bool {
        let is_root = match mount::place(target.fd.as_fd()).map(|place| place.is_root) {
            Ok(Some(is_root)) => is_root,
            // Before Linux 5.8: on another mount than its directory.
            Ok(None) => {
                self.mount_id(target.fd.as_fd()).ok()
                    != self.mount_id(target.directory.as_fd()).ok()
            }
            Err(_) => false,
        };
        is_root
            && mount::attributes(target.fd.as_fd()).is_ok_and(|found| found.contains(attributes))
    }

    /// Attaches a detached mount to a target.
    pub(in crate::apply) fn attach(
        &mut self,
        mount: OwnedFd,
        target: &Target,
        place: &Path,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        self.confine(target, place, journal)?;
        mount::attach(mount.as_fd(), target.fd.as_fd())
            .map_err(|errno| Error::file("mount operation failed", place, errno))?;
        journal.mounted(mount);
        Ok(())
    }

    /// Ensures that a mount on a target stays in the container's namespace.
    ///
    /// A mount on a *shared* mount propagates to all its peers, including the host's. So a shared mount is first made a
    /// slave here. Undo makes it shared again, but as the first of a new peer group.
    pub(in crate::apply) fn confine(
        &mut self,
        target: &Target,
        place: &Path,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        if self.namespace_is_ours {
            return Ok(());
        }
        let failed = |errno| Error::file("mount operation failed", place, errno);
        // A mount point we just created lies on its directory's mount; query that once.
        let made_in = target.found.is_none().then(|| target.directory.as_fd());
        let on_it = made_in.unwrap_or(target.fd.as_fd());
        let id = match made_in {
            Some(_) => target.directory.mount_id(self.descriptors.as_fd()),
            None => self.mount_id(on_it),
        };
        let id = id.map_err(failed)?;
        if !self.confined.insert(id) || !self.is_shared(on_it, id)? {
            return Ok(());
        }
        let root = self.root_of_mount(target, id).map_err(failed)?;
        log::info!(
            "making the mount that holds {} a slave of its peers",
            place.display()
        );
        by_name::set_propagation(root.as_fd(), MsFlags::MS_SLAVE, self.descriptors)
            .map_err(failed)?;
        journal.made_slave(root);
        Ok(())
    }

    /// Returns true if the mount that a descriptor is on is shared.
    fn is_shared(&mut self, on_it: BorrowedFd<'_>, id: u64) -> Result<bool> {
        if let Ok(shared) = mount::is_shared(on_it) {
            return Ok(shared);
        }
        if self.shared.is_none() {
            let text = mount_table(self.descriptors.as_fd());
            let text = text.map_err(|errno| {
                Error::file("read failed", "/proc/thread-self/mountinfo", errno)
            })?;
            self.shared = Some(mountinfo::shared_mounts(&text));
        }
        Ok(self
            .shared
            .as_ref()
            .is_some_and(|shared| shared.contains(&id)))
    }

    /// Returns a descriptor of the root of the mount that a target is on.
    fn root_of_mount(&self, target: &Target, id: u64) -> Result<OwnedFd, Errno> {
        let mut current = if self.mount_id(target.directory.as_fd())? == id {
            openat(target.directory.as_fd(), ".", DIRECTORY, Mode::empty())?
        } else {
            // The target is itself a mount.
            target.fd.try_clone().map_err(|_| Errno::EMFILE)?
        };
        loop {
            let above = match openat(&current, "..", DIRECTORY, Mode::empty()) {
                Ok(above) => above,
                // A file: the root of its mount.
                Err(Errno::ENOTDIR) => return Ok(current),
                Err(errno) => return Err(errno),
            };
            let is_top = || Ok::<_, Errno>(identity_of(&above)? == identity_of(&current)?);
            if self.mount_id(above.as_fd())? != id || is_top()? {
                return Ok(current);
            }
            current = above;
        }
    }

    /// Returns all mounts of this thread's namespace: ids, and their other distinguishing properties.
    ///
    /// The kernel reuses ids immediately. The mount point does not identify a mount, because it can be renamed.
    pub(in crate::apply) fn mounts(&self) -> Result<HashMap<u64, String>, Errno> {
        Ok(mountinfo::marks(&mount_table(self.descriptors.as_fd())?))
    }

    /// Returns the id of the mount that a descriptor is on.
    pub(in crate::apply) fn mount_id(&self, fd: BorrowedFd<'_>) -> Result<u64, Errno> {
        mount_id_by(fd, self.descriptors.as_fd())
    }
}

const DIRECTORY: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);
