//! Replaces a file of the image atomically: readers see the old one or the new one.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod};

use super::failure;
use crate::apply::authority::Authority;
use crate::apply::journal::Journal;
use crate::apply::reach::Reach;
use crate::apply::saved_file::{self, SavedFile};
use crate::error::{Error, ErrorKind, Result, errno_of};

/// Writes a new file in place of the saved one, which is restored if a later step fails.
pub(super) fn replace(
    kept: SavedFile,
    authority: &Authority,
    content: &[u8],
    mode: Mode,
    place: &Path,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let kept = Rc::new(kept);
    let (directory, name, reach) = (kept.parent(), kept.name(), kept.reach());
    if reach == Reach::Nothing {
        let error = authority.refusal("file creation failed", place, directory.as_fd());
        return Err(error.with_kind(ErrorKind::LdCache));
    }
    let to_put_back = Rc::clone(&kept);
    let undone = place.to_owned();
    journal.other(Box::new(move || {
        to_put_back
            .put_back()
            .map_err(|errno| failure("putting back failed", &undone, errno))
    }));
    let temporary = saved_file::temporary(name);
    kept.clear_way()
        .and_then(|()| reach.act(|| write(directory, &temporary, content, mode)))
        .and_then(|()| reach.act(|| renameat(directory, temporary.as_str(), directory, name)))
        .map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM if reach != Reach::Full => authority
                .refusal("file creation failed", place, directory.as_fd())
                .with_kind(ErrorKind::LdCache),
            _ => explained(failure("file creation failed", place, errno), errno),
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
        Errno::EROFS => error
            .hint("the container's root is read-only, and its /etc/ld.so.cache must be written"),
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
