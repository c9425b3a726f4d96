//! Mounts a file over an existing one that cannot be replaced: in procfs, or in an /etc that may not be changed.
//!
//! For procfs, the file is in a tmpfs of its own. Only a mount that is attached can be cloned (before Linux 6.15), so
//! the tmpfs is briefly attached to the directory of the target. Only the mount of its one file stays in the container.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;

use crate::apply::journal::Journal;
use crate::apply::mount::attach::Attacher;
use crate::apply::mount::legacy;
use crate::apply::mount::target::{Target, Tree};
use crate::apply::mount::tmpfs::{ATTRIBUTES, NewTmpfs};
use crate::apply::steps::TmpfsFile;
use crate::directory::open_child;
use crate::error::{Error, Result};
use crate::sys::mount::{self, MountAttributes};

/// A file to mount over another one.
pub(in crate::apply) struct NewCover<'a> {
    tmpfs: NewTmpfs<'a>,
    name: &'a str,
}

/// The mount of the file alone.
enum Cover {
    /// Not attached yet.
    Detached(OwnedFd),
    /// Attached, on kernels without detached mounts.
    Attached(OwnedFd),
}

impl<'a> NewCover<'a> {
    /// Creates the file's tmpfs.
    pub(in crate::apply) fn detached(file: &'a TmpfsFile) -> Result<Self, Errno> {
        let tmpfs = NewTmpfs::detached(0o555, std::slice::from_ref(file))?;
        let name = &file.name;
        Ok(Self { tmpfs, name })
    }

    /// Mounts it on a target in a directory.
    pub(in crate::apply) fn mount(
        self,
        target: &Target,
        directory: &Target,
        place: &Path,
        tree: &Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        // Before the mark: a mount that has been made a slave stays one.
        attacher.confine(directory, place, journal)?;
        attacher.confine(target, place, journal)?;
        let mark = journal.mark();
        self.tmpfs
            .attach(directory, place, tree, attacher, journal)?;
        let root = journal.mount_since(mark);
        let root = root.ok_or_else(|| failed(place)(Errno::ENOENT))?;
        let file = open_child(root.as_fd(), OsStr::new(self.name)).map_err(failed(place))?;
        let cover = alone(&file, target, place, attacher)?;
        let detached = journal.undo_to(mark).into_iter().next();
        match cover {
            Cover::Detached(mount) => {
                detached.map_or(Ok(()), Err)?;
                attacher.attach(mount, target, place, journal)
            }
            Cover::Attached(mount) => {
                journal.mounted(mount);
                detached.map_or(Ok(()), Err)
            }
        }
    }
}

/// Mounts a file of an attached tmpfs over a target, restricted and read-only.
pub(in crate::apply) fn mount_file(
    file: &OwnedFd,
    target: &Target,
    place: &Path,
    attacher: &mut Attacher<'_>,
    journal: &mut Journal<'_>,
) -> Result<()> {
    attacher.confine(target, place, journal)?;
    match alone(file, target, place, attacher)? {
        Cover::Detached(mount) => attacher.attach(mount, target, place, journal),
        Cover::Attached(mount) => {
            journal.mounted(mount);
            Ok(())
        }
    }
}

/// Returns a restricted mount of the file alone.
fn alone(file: &OwnedFd, target: &Target, place: &Path, attacher: &Attacher<'_>) -> Result<Cover> {
    let attributes = ATTRIBUTES | MountAttributes::RDONLY;
    let clone = mount::clone_mount(file.as_fd()).and_then(|clone| {
        let (nothing, private) = (MountAttributes::empty(), Some(libc::MS_PRIVATE));
        mount::set_attributes(clone.as_fd(), attributes, nothing, private)?;
        Ok(clone)
    });
    match clone {
        Err(Errno::ENOSYS) => {
            let mount = legacy::file(file.as_fd(), target, attacher, place, attributes)?;
            Ok(Cover::Attached(mount))
        }
        clone => clone.map(Cover::Detached).map_err(failed(place)),
    }
}

fn failed(place: &Path) -> impl Fn(Errno) -> Error {
    move |errno| Error::file("mount operation failed", place, errno)
}
