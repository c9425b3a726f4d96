//! Replaces files and links of the image.
//!
//! A file is written under a temporary name and renamed, so that readers see the old one or the new one. The old file
//! is restored if a later step fails. A link that takes the place of a file is different: the old file may be a library
//! of any size, of which no copy is kept. It is made under a temporary name, and renamed when nothing else can fail.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::apply::authority::Authority;
use crate::apply::journal::Journal;
use crate::apply::opened::OpenDirectory;
use crate::apply::reach::Reach;
use crate::apply::saved_file::{self, SavedFile};
use crate::error::{Error, Result, errno_of};

/// Number of temporary names to try; more links than this are not replaced in one directory.
const MAX_NAMES: u32 = 1 << 12;

/// A file to write in a directory.
pub(super) struct NewFile<'a> {
    pub(super) name: &'static str,
    pub(super) content: &'a [u8],
    /// Permission bits.
    pub(super) mode: u32,
    /// Permission bits of missing directories above it.
    pub(super) above: u32,
}

/// Writes a new file in place of the saved one, which is restored if a later step fails.
pub(super) fn replace(
    kept: SavedFile,
    authority: &Authority,
    content: &[u8],
    mode: Mode,
    place: &Path,
    journal: &mut Journal<'_>,
) -> Result<()> {
    const OPERATION: &str = "file creation failed";
    let kept = Rc::new(kept);
    let (directory, name, reach) = (kept.parent(), kept.name(), kept.reach());
    if reach == Reach::Nothing {
        return Err(authority.refusal(OPERATION, place, directory.as_fd()));
    }
    let to_put_back = Rc::clone(&kept);
    let undone = place.to_owned();
    journal.other(Box::new(move || {
        to_put_back
            .put_back()
            .map_err(|errno| Error::file("putting back failed", &undone, errno))
    }));
    let temporary = saved_file::temporary(name);
    kept.clear_way()
        .and_then(|()| reach.act(|| write(directory, &temporary, content, mode)))
        .and_then(|()| reach.act(|| renameat(directory, temporary.as_str(), directory, name)))
        .map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM if reach != Reach::Full => {
                authority.refusal(OPERATION, place, directory.as_fd())
            }
            _ => explained(Error::file(OPERATION, place, errno), errno),
        })
}

/// Writes a file that does not exist yet.
fn write(directory: &OwnedFd, name: &str, content: &[u8], mode: Mode) -> Result<(), Errno> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, mode)?);
    file.write_all(content).map_err(|e| errno_of(&e))?;
    // Whatever the directory's default access list, like ldconfig.
    fchmod(&file, mode)
}

fn explained(error: Error, errno: Errno) -> Error {
    match errno {
        Errno::EROFS => error.hint("the container's root is read-only"),
        Errno::EACCES | Errno::EPERM => {
            error.hint("the owner of the container's root must be able to write its /etc")
        }
        Errno::ENOSPC | Errno::EDQUOT => {
            error.hint("the file system of the container's root is full")
        }
        Errno::EEXIST => error.hint("the image has an object with the new file's temporary name"),
        _ => error,
    }
}

/// A link under a temporary name, for the place of a file of the image.
pub(super) struct PendingLink {
    pub(super) directory: Rc<OpenDirectory>,
    pub(super) name: OsString,
    pub(super) temporary: OsString,
    /// The privileges for changing the directory.
    pub(super) reach: Reach,
    /// Its path for messages.
    pub(super) place: PathBuf,
}

impl PendingLink {
    /// Returns the temporary names to try.
    pub(super) fn temporary_names() -> impl Iterator<Item = OsString> {
        let process = std::process::id();
        (0..MAX_NAMES).map(move |number| format!(".nvc-link.{process}.{number}").into())
    }

    /// Moves it to its place.
    pub(super) fn rename(&self) -> Result<()> {
        let (directory, temporary) = (self.directory.as_fd(), self.temporary.as_os_str());
        let moved = || renameat(directory, temporary, directory, self.name.as_os_str());
        self.reach.act(moved).map_err(|errno| {
            // The journal forgets it if the other effects stay.
            let remove = || unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir);
            let removed = self.reach.act(remove);
            let removed =
                removed.map_err(|errno| Error::file("file removal failed", temporary, errno));
            Error::file("file creation failed", &self.place, errno).with_cleanup(removed.err())
        })
    }
}
