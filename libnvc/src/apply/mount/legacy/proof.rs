//! Checks that a name leads to the new mount, before anything is done with that name.
//!
//! mount(2) returns no descriptor of the new mount. The descriptor of its mount point stays below it, so the only way
//! to its root is the mount point's name. A process in another mount namespace that sees the same directory, such as a
//! second container with the same volume, may rename it, because it is a mount point only here. The name may then lead
//! to another mount: that one would be restricted, and the new one would stay writable. So the mount found by name must
//! be one that did not exist before, and its root must be the expected file. A new id is not sufficient: removing the
//! mount point of an old mount in another namespace frees its id, and the next mount reuses it. If the check fails, the
//! new mount is unmounted by the descriptor of the mount point, which is independent of names.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::unistd::fchdir;

use crate::apply::mount::attach::Attacher;
use crate::apply::mount::by_name::name;
use crate::apply::mount::target::{Target, replaced};
use crate::directory::open_child;
use crate::error::{Error, Result};
use crate::sys::mount;

/// The mounts of this thread's namespace before the new one.
pub(super) struct Before<'a> {
    mounts: HashMap<u64, String>,
    attacher: &'a Attacher<'a>,
}

impl<'a> Before<'a> {
    pub(super) fn new(attacher: &'a Attacher<'a>) -> Result<Self, Errno> {
        let mounts = attacher.mounts()?;
        Ok(Self { mounts, attacher })
    }

    /// Opens the root of the new mount on a target, if the target's name leads there and `is_it` accepts it. Otherwise
    /// unmounts it.
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

    /// Returns true if a descriptor refers to the root of a new mount.
    ///
    /// Before Linux 5.8 the kernel does not report whether it is the root. It is: its name was looked up in a directory
    /// of an older mount, and one step into another mount leads to its root.
    fn is_new_root(&self, found: BorrowedFd<'_>) -> Result<bool, Errno> {
        let id = self.attacher.mount_id(found)?;
        let is_new = self.new_mounts()?.contains_key(&id);
        Ok(is_new && mount::place(found)?.is_root != Some(false))
    }

    /// Returns the new mounts.
    fn new_mounts(&self) -> Result<HashMap<u64, String>, Errno> {
        let mut mounts = self.attacher.mounts()?;
        mounts.retain(|id, mark| self.mounts.get(id) != Some(mark));
        Ok(mounts)
    }

    /// Unmounts the new mount from the target, which may have been renamed.
    fn remove(&self, target: &Target) -> Result<(), Errno> {
        let new = self.new_mounts()?;
        // Removing a mount point in another namespace unmounts it everywhere.
        if new.is_empty() {
            return Ok(());
        }
        fchdir(self.attacher.descriptors)?;
        // umount2(2) starts at the descriptor's directory or file and unmounts the topmost mount on it.
        umount2(name(target.fd.as_fd()).as_str(), MntFlags::MNT_DETACH)?;
        let now = self.new_mounts()?;
        if new.iter().all(|(id, mark)| now.get(id) == Some(mark)) {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::rc::Rc;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::inroot;

    /// How often an id is tried: any process of the machine may take the one that becomes free.
    const MAX_ATTEMPTS: usize = 1000;

    /// An earlier mount vanishes at that moment, and the new one gets its id.
    #[test]
    #[ignore = "needs root"]
    fn an_id_that_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["source", "old", "target"] {
            File::create(dir.path().join(name)).unwrap();
        }
        let of_thread = || {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).unwrap();
            for is_right in [true, false] {
                let attempts = (0..MAX_ATTEMPTS).map(|_| attempt(dir.path(), is_right));
                let is_tried = attempts.into_iter().any(|is_same| is_same);
                assert!(is_tried, "the kernel did not use an id again");
            }
        };
        std::thread::scope(|scope| scope.spawn(of_thread).join().unwrap());
    }

    /// Returns false if the new mount did not get the id of the old one.
    fn attempt(directory: &Path, is_right: bool) -> bool {
        let none = None::<&str>;
        let bind = |at: &str, flags| {
            let (source, at) = (directory.join("source"), directory.join(at));
            mount(Some(&source), &at, none, flags, none).unwrap();
        };
        bind("old", MsFlags::MS_BIND);
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        bind("old", MsFlags::MS_BIND | read_only);
        let descriptors = inroot::own_descriptors().unwrap();
        let attacher = Attacher::new(true, &descriptors);
        let opened: OwnedFd = File::open(directory).unwrap().into();
        let target = Target {
            fd: open_child(opened.as_fd(), "target".as_ref()).unwrap(),
            directory: Rc::new(opened.into()),
            name: "target".into(),
            found: None,
        };
        let before = Before::new(&attacher).unwrap();
        let unmount = |name: &str| umount2(&directory.join(name), MntFlags::MNT_DETACH).unwrap();
        unmount("old");
        bind("target", MsFlags::MS_BIND);
        let ids = |mounts: HashMap<u64, String>| {
            let mut ids: Vec<_> = mounts.into_keys().collect();
            ids.sort_unstable();
            ids
        };
        let (old, new) = (ids(before.mounts.clone()), ids(attacher.mounts().unwrap()));
        if old != new {
            unmount("target");
            return false;
        }
        let found = before.find(&target, directory, |_| Ok(is_right));
        assert_eq!(found.is_ok(), is_right);
        drop(found);
        let left = attacher.mounts().unwrap().len();
        assert_eq!(left, old.len() - usize::from(!is_right));
        if is_right {
            unmount("target");
        }
        true
    }
}
