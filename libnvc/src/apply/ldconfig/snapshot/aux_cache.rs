//! Removes ldconfig's auxiliary cache from a root that had no directory for it.
//!
//! ldconfig creates /var/cache/ldconfig, but nothing above it. An image's links can make a mount point of its file: then
//! `configure` creates /var/cache and /var while ldconfig runs, or the missing target of a link in their place, and
//! cannot remove them while ldconfig's file is there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{AUX_CACHE, AUX_CACHE_DIRECTORY};
use crate::apply::saved_file;
use crate::apply::volumes::authority::Authority;
use crate::apply::volumes::rights::Rights;
use crate::inroot::RootDir;
use crate::sys::mount;

/// The places in which ldconfig may create its directory.
#[derive(Debug)]
pub(super) struct MissingDirectory {
    /// The deepest directory above it that exists.
    above: OwnedFd,
    /// The rights for changing what is on that directory's mount.
    rights: Rights,
}

impl MissingDirectory {
    /// Looks for the place of ldconfig's directory, which does not exist. Returns None if ldconfig cannot create it.
    pub(super) fn find(root: &RootDir, authority: &Authority) -> Result<Option<Self>, Errno> {
        for above in Path::new(AUX_CACHE_DIRECTORY).ancestors().skip(1) {
            match root.resolve_directory(above) {
                Ok(above) => {
                    let rights = authority.rights_of_ldconfig(above.as_fd())?;
                    return Ok(Some(Self { above, rights }));
                }
                Err(Errno::ENOENT) => {}
                Err(Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Removes ldconfig's files and its directory, unless that contains something else. Looks for them by their path,
    /// because a link on the way may have had no target before.
    pub(super) fn remove(&self, root: &RootDir) -> Result<(), Errno> {
        let path = Path::new(AUX_CACHE_DIRECTORY);
        if let Some((directory, rights)) = self.resolve(root, path)? {
            rights.act(|| {
                saved_file::remove(directory.as_fd(), &format!("{AUX_CACHE}~"))?;
                saved_file::remove(directory.as_fd(), AUX_CACHE)
            })?;
        }
        let (parent, name) = (path.parent(), path.file_name());
        let (Some(parent), Some(name)) = (parent, name) else {
            return Ok(());
        };
        let Some((parent, rights)) = self.resolve(root, parent)? else {
            return Ok(());
        };
        match rights.act(|| unlinkat(&parent, name, UnlinkatFlags::RemoveDir)) {
            // Something else is in it or in its place, or mounted there.
            Err(
                Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR | Errno::EBUSY,
            ) => Ok(()),
            removed => removed,
        }
    }

    /// Opens a directory, if it exists now, and may be changed: another filesystem may have been mounted there
    /// meanwhile, whose files are not ldconfig's.
    fn resolve(&self, root: &RootDir, path: &Path) -> Result<Option<(OwnedFd, Rights)>, Errno> {
        let directory = match root.resolve_directory(path) {
            Ok(directory) => directory,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let mount = mount_of(directory.as_fd())?;
        let rights = if mount == mount_of(self.above.as_fd())? {
            self.rights
        } else if mount == mount_of(root.as_fd())? {
            Rights::Full
        } else {
            Rights::Nothing
        };
        Ok((rights != Rights::Nothing).then_some((directory, rights)))
    }
}

fn mount_of(directory: BorrowedFd<'_>) -> Result<(Option<u64>, u64), Errno> {
    Ok((mount::place(directory)?.id, fstat(directory)?.st_dev))
}
