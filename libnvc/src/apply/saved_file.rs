//! Keeps one file that is replaced by renaming, as ldconfig does it, and puts it back.
//!
//! Nobody writes into the old file, so an open descriptor keeps all of it: content, mode, owner, attributes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, linkat, symlinkat, unlinkat};

mod xattr;

use crate::apply::authority::Reach;
use crate::apply::mount::target::open_child;
use crate::error::errno_of;
use crate::inroot::{self, kind};

/// Most bytes of a file that is kept: putting it back can mean to copy it, and holes become blocks.
pub(super) const LARGEST: u64 = 16 << 20;

/// A name in a directory, and what was there.
#[derive(Debug)]
pub(super) struct SavedFile {
    parent: OwnedFd,
    /// With whose rights the parent may be changed.
    reach: Reach,
    name: &'static str,
    was: Was,
    /// What has ldconfig's name for a new file.
    temporary: Was,
}

#[derive(Debug)]
enum Was {
    Missing,
    File(File),
    Link(OsString),
    /// Something that no copy can replace; ldconfig fails on a directory and replaces the rest.
    Other(FileStat),
    /// A file that has more than [`LARGEST`] bytes.
    TooLarge(FileStat),
}

impl SavedFile {
    /// Keeps what has this name; `descriptors` is this thread's `/proc/thread-self/fd`.
    pub(super) fn take(
        parent: OwnedFd,
        reach: Reach,
        name: &'static str,
        descriptors: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let was = Was::at(&parent, name, descriptors)?;
        let temporary = Was::at(&parent, &temporary(name), descriptors)?;
        Ok(Self {
            parent,
            reach,
            name,
            was,
            temporary,
        })
    }

    /// The directory that the name is in.
    pub(super) fn parent(&self) -> &OwnedFd {
        &self.parent
    }

    /// With whose rights that may be changed.
    pub(super) fn reach(&self) -> Reach {
        self.reach
    }

    /// The name.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The file that has the name, open for reading, if it is one.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.was {
            Was::File(file) => Some(file),
            _ => None,
        }
    }

    /// Whether there is nothing of this name.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.was, Was::Missing)
    }

    /// Whether what was there can be put back.
    pub(super) fn can_come_back(&self) -> bool {
        let can = |was: &Was| !matches!(was, Was::Other(_) | Was::TooLarge(_));
        can(&self.was) && can(&self.temporary)
    }

    /// The name of a file that is too large to be put back, if one is.
    pub(super) fn too_large(&self) -> Option<String> {
        match (&self.was, &self.temporary) {
            (Was::TooLarge(_), _) => Some(self.name.to_owned()),
            (_, Was::TooLarge(_)) => Some(temporary(self.name)),
            _ => None,
        }
    }

    /// Whether reading the file would wait for a writer that never comes.
    pub(super) fn is_fifo(&self) -> bool {
        self.was.is_fifo()
    }

    /// Whether writing a new file would wait for a reader that never comes.
    pub(super) fn is_obstructed_by_fifo(&self) -> bool {
        self.temporary.is_fifo()
    }

    /// Takes an earlier run's unfinished file out of the way: ldconfig would write into it, whatever else it is a name of.
    pub(super) fn clear_way(&self) -> Result<(), Errno> {
        match self.temporary {
            Was::File(_) => self
                .reach
                .act(|| remove(&self.parent, &temporary(self.name))),
            _ => Ok(()),
        }
    }

    /// Makes the name mean what it did, and the new file's too.
    pub(super) fn put_back(&self) -> Result<(), Errno> {
        match self.reach {
            // Then nothing has changed.
            Reach::Nothing => Ok(()),
            reach => reach.act(|| self.put_back_both()),
        }
    }

    fn put_back_both(&self) -> Result<(), Errno> {
        let temporary = temporary(self.name);
        if !self.is_obstructed(&temporary)? {
            remove(&self.parent, &temporary)?; // ldconfig may have left it
        }
        let done = self.put_back_name(&temporary);
        match &self.temporary {
            Was::File(file) => done.and(self.make_again(file, &temporary)?),
            _ => done,
        }
    }

    fn put_back_name(&self, temporary: &str) -> Result<(), Errno> {
        let now = look(&self.parent, self.name)?;
        match &self.was {
            Was::Missing => match now {
                Some(stat) if kind(&stat) == SFlag::S_IFREG => remove(&self.parent, self.name),
                _ => Ok(()),
            },
            Was::File(file) => {
                let old = fstat(file)?;
                if now.is_some_and(|now| same(&now, &old)) {
                    return Ok(());
                }
                let like = self.make_again(file, temporary)?;
                // The content is worth more than the rest: it is put back even if the file cannot have its owner.
                self.rename(temporary).and(like)
            }
            Was::Link(target) => {
                if readlinkat(&self.parent, self.name).as_ref() == Ok(target) {
                    return Ok(());
                }
                symlinkat(target.as_os_str(), &self.parent, temporary)?;
                self.rename(temporary)
            }
            Was::Other(old) | Was::TooLarge(old) => match now {
                Some(now) if same(&now, old) => Ok(()),
                _ => Err(Errno::EOPNOTSUPP),
            },
        }
    }

    /// Whether what was in the way of ldconfig, other than a file, still is.
    fn is_obstructed(&self, temporary: &str) -> Result<bool, Errno> {
        match &self.temporary {
            Was::Missing | Was::File(_) => Ok(false),
            Was::Link(target) => {
                Ok(readlinkat(&self.parent, temporary).is_ok_and(|now| now == *target))
            }
            Was::Other(obstacle) | Was::TooLarge(obstacle) => {
                let now = look(&self.parent, temporary)?;
                Ok(now.is_some_and(|now| same(&now, obstacle)))
            }
        }
    }

    /// Gives an old file a name again: the file itself if it has another one left, or else a copy. What the copy could
    /// not be given is the second result.
    fn make_again(&self, old: &File, name: &str) -> Result<Result<(), Errno>, Errno> {
        if linkat(old, "", &self.parent, name, AtFlags::AT_EMPTY_PATH).is_ok() {
            return Ok(Ok(()));
        }
        let made = self.copy(old, name);
        let made = made.and_then(|new| Ok(make_like(&new, old, &fstat(old)?)));
        made.inspect_err(|_| {
            let _ = remove(&self.parent, name); // the first failure counts
        })
    }

    fn copy(&self, mut old: &File, name: &str) -> Result<File, Errno> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut new = File::from(openat(&self.parent, name, flags, mode)?);
        old.seek(SeekFrom::Start(0)).map_err(|e| errno_of(&e))?;
        // It may have grown since it was looked at.
        let copied = std::io::copy(&mut old.take(LARGEST + 1), &mut new);
        match copied.map_err(|e| errno_of(&e))? {
            0..=LARGEST => Ok(new),
            _ => Err(Errno::EFBIG),
        }
    }

    fn rename(&self, temporary: &str) -> Result<(), Errno> {
        renameat(&self.parent, temporary, &self.parent, self.name)
    }
}

impl Was {
    fn at(parent: &OwnedFd, name: &str, descriptors: BorrowedFd<'_>) -> Result<Self, Errno> {
        // By reference first and then that very file, since opening a device or a fifo can be enough to do harm.
        let found = match open_child(parent.as_fd(), name.as_ref()) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(Self::Missing),
            Err(errno) => return Err(errno),
        };
        let stat = inroot::stat(found.as_fd())?;
        match kind(&stat) {
            SFlag::S_IFREG => match inroot::reopen(descriptors, found.as_fd(), OFlag::O_RDONLY) {
                Ok(_) if stat.st_size.cast_unsigned() > LARGEST => Ok(Self::TooLarge(stat)),
                Ok(file) => Ok(Self::File(file.into())),
                // Of an owner that is not mapped in this user namespace, or the kernel's: no reason not to run ldconfig.
                Err(Errno::EACCES | Errno::EPERM | Errno::EOPNOTSUPP) => Ok(Self::Other(stat)),
                Err(errno) => Err(errno),
            },
            SFlag::S_IFLNK => readlinkat(&found, "").map(Self::Link),
            _ => Ok(Self::Other(stat)),
        }
    }

    fn is_fifo(&self) -> bool {
        matches!(self, Self::Other(stat) if kind(stat) == SFlag::S_IFIFO)
    }
}

/// Gives a copy the owner, mode and attributes of the original, as far as possible.
fn make_like(new: &File, old: &File, stat: &FileStat) -> Result<(), Errno> {
    let made = fstat(new)?;
    let mut mode = Mode::from_bits_truncate(stat.st_mode);
    let mut owned = Ok(());
    if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        owned = fchown(new, Some(user), Some(group));
        if owned.is_err() {
            mode -= Mode::S_ISUID | Mode::S_ISGID; // not somebody else's
        }
    }
    // After the owner, a change of which clears bits; before the attributes, since an access list is one of them.
    fchmod(new, mode)?;
    owned?;
    xattr::copy(old.as_fd(), new.as_fd())
}

/// The name under which ldconfig writes a file before it replaces the old one.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}~")
}

fn look(parent: &OwnedFd, name: &str) -> Result<Option<FileStat>, Errno> {
    match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Makes a name a link to `target`, whatever link it was.
pub(super) fn relink(parent: &OwnedFd, name: &OsStr, target: &OsStr) -> Result<(), Errno> {
    const TEMPORARY: &str = ".nvc-link~";
    remove(parent, TEMPORARY)?;
    symlinkat(target, parent, TEMPORARY)?;
    renameat(parent, TEMPORARY, parent, name)
}

/// Removes a name that may not be there.
pub(super) fn remove(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        // A read-only root, in which nothing can have been made either.
        Err(Errno::EROFS) if look(parent, name)?.is_none() => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn same(one: &FileStat, other: &FileStat) -> bool {
    inroot::identity(one) == inroot::identity(other)
}
