//! Removes ldconfig's auxiliary cache from a root that had no directory for it. ldconfig creates /var/cache/ldconfig, but
//! nothing above it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{AUX_CACHE, AUX_CACHE_DIRECTORY};
use crate::apply::saved_file::{self, temporary};
use crate::apply::volumes::authority::Authority;
use crate::apply::volumes::rights::Rights;
use crate::inroot::RootDir;
use crate::sys::mount;

/// The place in which ldconfig may create its directory.
#[derive(Debug)]
pub(super) struct MissingDirectory {
    above: OwnedFd,
    rights: Rights,
}

impl MissingDirectory {
    /// Opens the directory above ldconfig's, which does not exist. Returns None if ldconfig cannot create it.
    pub(super) fn find(root: &RootDir, authority: &Authority) -> Result<Option<Self>, Errno> {
        let parent = Path::new(AUX_CACHE_DIRECTORY).parent();
        match root.resolve_directory(parent.unwrap_or(Path::new("/"))) {
            Ok(above) => {
                let rights = authority.rights_of_ldconfig(above.as_fd())?;
                Ok((rights != Rights::Nothing).then_some(Self { above, rights }))
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Removes ldconfig's files and its directory, unless that contains something else, or something else is mounted there.
    pub(super) fn remove(&self) -> Result<(), Errno> {
        let name = Path::new(AUX_CACHE_DIRECTORY).file_name();
        let name = name.unwrap_or_default();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = match openat(&self.above, name, flags, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            directory => directory?,
        };
        if mount::place(directory.as_fd())?.id != mount::place(self.above.as_fd())?.id {
            return Ok(());
        }
        self.rights.act(|| {
            saved_file::remove(&directory, &temporary(AUX_CACHE))?;
            saved_file::remove(&directory, AUX_CACHE)?;
            match unlinkat(&self.above, name, UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
                removed => removed,
            }
        })
    }
}
