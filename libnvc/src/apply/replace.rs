//! Replaces files and links of the image.
//!
//! A file is written under a temporary name and renamed, so that readers see the old one or the new one. The old file
//! is restored if a later step fails: from an open descriptor, or, if that is impossible, because it has been set aside
//! under the temporary name. A link that takes the place of a file is different: the old file may be a library of any
//! size, which an overlay would copy to set it aside. So the link is made under a temporary name and renamed last. The
//! old file is set aside only while another such link can still fail.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::apply::journal::Journal;
use crate::apply::saved_file::{self, SavedFile};
use crate::apply::volumes::authority::{Authority, READ_ONLY};
use crate::apply::volumes::opened::OpenDirectory;
use crate::apply::volumes::rights::Rights;
use crate::error::{Error, Result, errno_of};

/// Number of temporary names to try; more links than this are not replaced in one directory.
const MAX_NAMES: u32 = 1 << 12;

/// A file to write in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NewFile {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
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
    let (directory, name, rights) = (kept.parent(), kept.name(), kept.rights());
    if rights == Rights::Nothing {
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
    let mut put = || {
        if kept.can_come_back() {
            return rights.act(|| renameat(directory, temporary.as_str(), directory, name));
        }
        if kept.is_directory() {
            return Err(Errno::EISDIR);
        }
        let names = Names::new(directory.as_fd(), temporary.as_ref(), name.as_ref(), rights)?;
        let is_set_aside = names.exchange(place, journal)?;
        is_set_aside.then_some(()).ok_or(Errno::EOPNOTSUPP)
    };
    kept.clear_way()
        .and_then(|()| rights.act(|| write(directory, &temporary, content, mode)))
        .and_then(|()| put())
        .map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM if rights != Rights::Full => {
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
        Errno::EROFS => error.hint(READ_ONLY),
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
    /// The rights for changing the directory.
    pub(super) rights: Rights,
    /// Its path for messages.
    pub(super) place: PathBuf,
}

impl PendingLink {
    /// Returns the temporary names to try.
    pub(super) fn temporary_names() -> impl Iterator<Item = OsString> {
        let process = std::process::id();
        (0..MAX_NAMES).map(move |number| format!(".nvc-link.{process}.{number}").into())
    }

    /// Moves it to its place. `keeps` sets the old file aside until all effects stay, if the file system can do that.
    pub(super) fn put(&self, keeps: bool, journal: &mut Journal<'_>) -> Result<()> {
        let (directory, temporary) = (self.directory.as_fd(), self.temporary.as_os_str());
        let name = self.name.as_os_str();
        let set_aside = if keeps {
            let names = Names::new(directory, temporary, name, self.rights);
            names.and_then(|names| names.exchange(&self.place, journal))
        } else {
            Ok(false)
        };
        let put = set_aside.and_then(|is_done| {
            if is_done {
                Ok(())
            } else {
                self.rights
                    .act(|| renameat(directory, temporary, directory, name))
            }
        });
        put.map_err(|errno| {
            // The journal forgets it if the other effects stay.
            let remove = || unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir);
            let removed = self.rights.act(remove);
            let removed =
                removed.map_err(|errno| Error::file("file removal failed", temporary, errno));
            Error::file("file creation failed", &self.place, errno).with_cleanup(removed.err())
        })
    }
}

/// Two names in one directory: of a new object, and of the old one whose place it takes.
struct Names {
    directory: OwnedFd,
    new: OsString,
    old: OsString,
    rights: Rights,
}

impl Names {
    fn new(
        directory: BorrowedFd<'_>,
        new: &OsStr,
        old: &OsStr,
        rights: Rights,
    ) -> Result<Self, Errno> {
        let directory = directory.try_clone_to_owned();
        Ok(Self {
            directory: directory.map_err(|e| errno_of(&e))?,
            new: new.to_owned(),
            old: old.to_owned(),
            rights,
        })
    }

    /// Exchanges the objects until all effects stay; then the old one is removed. Returns false if the file system cannot
    /// do that.
    fn exchange(self, place: &Path, journal: &mut Journal<'_>) -> Result<bool, Errno> {
        match self.swap() {
            Ok(()) => {}
            Err(Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let failed = |operation: &'static str| {
            let place = place.to_owned();
            move |errno| Error::file(operation, place, errno)
        };
        let names = Rc::new(self);
        let (back, aside) = (Rc::clone(&names), names);
        let (not_back, left) = (failed("putting back failed"), failed("removal failed"));
        journal.set_aside(
            Box::new(move || back.swap().map_err(not_back)),
            Box::new(move || aside.remove_new().map_err(left)),
        );
        Ok(true)
    }

    fn swap(&self) -> Result<(), Errno> {
        let (directory, flags) = (&self.directory, RenameFlags::RENAME_EXCHANGE);
        let (new, old) = (self.new.as_os_str(), self.old.as_os_str());
        let swap = || renameat2(directory, new, directory, old, flags);
        self.rights.act(swap)
    }

    /// Removes what the name of the new object leads to.
    fn remove_new(&self) -> Result<(), Errno> {
        let new = self.new.as_os_str();
        let remove = || unlinkat(&self.directory, new, UnlinkatFlags::NoRemoveDir);
        self.rights.act(remove)
    }
}
