//! Keeps one file that is replaced by renaming, as ldconfig does it, and puts it back.
//!
//! Nobody writes into the old file, so an open descriptor keeps all of it: content, mode, owner, attributes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, symlinkat, unlinkat};

use crate::error::errno_of;
use crate::sys::xattr;

/// A name in a directory, and what was there.
#[derive(Debug)]
pub(super) struct Kept {
    parent: OwnedFd,
    name: &'static str,
    was: Was,
    /// What has ldconfig's name for a new file but is none, and so stops ldconfig: neither its nor ours to remove.
    obstacle: Option<FileStat>,
}

#[derive(Debug)]
enum Was {
    Missing,
    File(File),
    Link(OsString),
    /// Something that no copy can replace; ldconfig fails on a directory and replaces the rest.
    Other(FileStat),
}

impl Kept {
    /// Keeps what has this name.
    pub(super) fn take(parent: OwnedFd, name: &'static str) -> Result<Self, Errno> {
        let was = match look(&parent, name)? {
            None => Was::Missing,
            Some(stat) => match kind(&stat) {
                // Checked first, since opening a device can be enough to do harm.
                SFlag::S_IFREG => {
                    let flags = OFlag::O_RDONLY
                        | OFlag::O_NOFOLLOW
                        | OFlag::O_NONBLOCK
                        | OFlag::O_NOCTTY
                        | OFlag::O_CLOEXEC;
                    match openat(&parent, name, flags, Mode::empty()) {
                        Ok(file) => Was::File(file.into()),
                        // Of an owner that is not mapped in this user namespace: no reason not to run ldconfig.
                        Err(Errno::EACCES | Errno::EPERM) => Was::Other(stat),
                        Err(errno) => return Err(errno),
                    }
                }
                SFlag::S_IFLNK => Was::Link(readlinkat(&parent, name)?),
                _ => Was::Other(stat),
            },
        };
        let obstacle = look(&parent, &temporary(name))?;
        Ok(Self {
            parent,
            name,
            was,
            obstacle: obstacle.filter(|found| kind(found) != SFlag::S_IFREG),
        })
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

    /// Makes the name mean what it did.
    pub(super) fn put_back(self) -> Result<(), Errno> {
        let temporary = temporary(self.name);
        if !self.is_obstructed(&temporary)? {
            remove(&self.parent, &temporary)?; // ldconfig may have left it
        }
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
                let new = self.copy(file, &temporary).and_then(|new| {
                    // The content is worth more than the rest: it is put back even if the file cannot have its owner.
                    let like = make_like(&new, file, &old);
                    self.rename(&temporary).map(|()| like)
                });
                new.unwrap_or_else(|errno| {
                    let _ = remove(&self.parent, &temporary); // the first failure counts
                    Err(errno)
                })
            }
            Was::Link(target) => {
                if readlinkat(&self.parent, self.name).as_ref() == Ok(target) {
                    return Ok(());
                }
                symlinkat(target.as_os_str(), &self.parent, temporary.as_str())?;
                self.rename(&temporary)
            }
            Was::Other(old) => match now {
                Some(now) if same(&now, old) => Ok(()),
                _ => Err(Errno::EOPNOTSUPP),
            },
        }
    }

    fn is_obstructed(&self, temporary: &str) -> Result<bool, Errno> {
        let Some(obstacle) = &self.obstacle else {
            return Ok(false);
        };
        let now = look(&self.parent, temporary)?;
        Ok(now.is_some_and(|now| same(&now, obstacle)))
    }

    fn copy(&self, mut old: &File, temporary: &str) -> Result<File, Errno> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let new = openat(
            &self.parent,
            temporary,
            flags,
            Mode::S_IRUSR | Mode::S_IWUSR,
        )?;
        let mut new = File::from(new);
        old.seek(SeekFrom::Start(0)).map_err(|e| errno_of(&e))?;
        std::io::copy(&mut old, &mut new).map_err(|e| errno_of(&e))?;
        Ok(new)
    }

    fn rename(&self, temporary: &str) -> Result<(), Errno> {
        renameat(&self.parent, temporary, &self.parent, self.name)
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

/// Whether a name is that of a regular file.
pub(super) fn is_file(parent: &OwnedFd, name: &str) -> Result<bool, Errno> {
    Ok(look(parent, name)?.is_some_and(|stat| kind(&stat) == SFlag::S_IFREG))
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

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

fn same(one: &FileStat, other: &FileStat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
