//! Removes ldconfig's auxiliary cache from a root that had no directory for it.
//!
//! ldconfig creates /var/cache/ldconfig, but nothing above it. An image's links can make a mount point of its file: then
//! `configure` creates /var/cache and /var while ldconfig runs, and cannot remove them while ldconfig's file is there.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::NOTES;
use crate::apply::authority::Authority;
use crate::apply::reach::Reach;
use crate::apply::saved_file;
use crate::inroot::RootDir;
use crate::sys::mount;

/// Where ldconfig would create its directory.
#[derive(Debug)]
pub(super) struct MissingDirectory {
    /// The deepest directory that exists.
    above: OwnedFd,
    /// The names below it that lead to ldconfig's directory, including its own.
    names: Vec<OsString>,
    /// The privileges for changing it.
    reach: Reach,
}

impl MissingDirectory {
    /// Looks for a directory that does not exist. Returns None if ldconfig cannot create it, or nothing may be removed
    /// there.
    pub(super) fn find(
        root: &RootDir,
        directory: &Path,
        authority: &Authority,
    ) -> Result<Option<Self>, Errno> {
        for above in directory.ancestors().skip(1) {
            match root.resolve_directory(above) {
                Ok(fd) => {
                    let reach = authority.reach_of_ldconfig(fd.as_fd())?;
                    let below = directory.strip_prefix(above).into_iter().flatten();
                    return Ok((reach != Reach::Nothing).then_some(Self {
                        above: fd,
                        names: below.map(OsStr::to_owned).collect(),
                        reach,
                    }));
                }
                Err(Errno::ENOENT) => {}
                Err(Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Removes ldconfig's files, and the directories on the way to them unless they contain something else.
    pub(super) fn remove(&self) -> Result<(), Errno> {
        self.reach
            .act(|| remove_below(self.above.as_fd(), &self.names))
    }
}

fn remove_below(above: BorrowedFd<'_>, names: &[OsString]) -> Result<(), Errno> {
    let Some((name, below)) = names.split_first() else {
        saved_file::remove(above, &format!("{NOTES}~"))?;
        return saved_file::remove(above, NOTES);
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = match openat(above, name.as_os_str(), flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    // Another filesystem has been mounted here meanwhile: leave its files alone.
    if mount_of(directory.as_fd())? != mount_of(above)? {
        return Ok(());
    }
    remove_below(directory.as_fd(), below)?;
    match unlinkat(above, name.as_os_str(), UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
        removed => removed,
    }
}

fn mount_of(directory: BorrowedFd<'_>) -> Result<(Option<u64>, u64), Errno> {
    Ok((mount::place(directory)?.id, fstat(directory)?.st_dev))
}
