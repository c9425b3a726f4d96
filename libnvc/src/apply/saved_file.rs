//! Saves one file that is replaced by renaming, as ldconfig does, and restores it.
//!
//! The old file is not written to, so an open descriptor preserves all of it: content, mode, owner, attributes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, linkat, symlinkat, unlinkat};

mod xattr;

use crate::apply::volumes::rights::Rights;
use crate::directory::open_child;
use crate::error::errno_of;
use crate::inroot::{self, kind};

/// Size limit of a saved file: restoring it may require a copy, in which holes become blocks.
pub(super) const MAX_SIZE: u64 = 16 << 20;

/// A name in a directory, with its previous file.
#[derive(Debug)]
pub(super) struct SavedFile {
    parent: OwnedFd,
    /// The rights for changing the parent.
    rights: Rights,
    name: String,
    previous: PreviousFile,
    /// The file with ldconfig's name for a new file.
    temporary: PreviousFile,
}

#[derive(Debug)]
enum PreviousFile {
    Missing,
    File(File),
    Link(OsString),
    /// A file that cannot be copied; ldconfig fails on a directory and replaces the rest.
    Other(FileStat),
    /// A file of more than [`MAX_SIZE`] bytes.
    TooLarge(FileStat),
}

impl SavedFile {
    /// Saves the file of this name; `descriptors` is this thread's `/proc/thread-self/fd`.
    pub(super) fn take(
        parent: OwnedFd,
        rights: Rights,
        name: &str,
        descriptors: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let at = |name: &str| rights.open_old(|| PreviousFile::at(&parent, name, descriptors));
        let (previous, temporary) = (at(name)?, at(&temporary(name))?);
        Ok(Self {
            parent,
            rights,
            name: name.to_owned(),
            previous,
            temporary,
        })
    }

    /// Returns the directory that the name is in.
    pub(super) fn parent(&self) -> &OwnedFd {
        &self.parent
    }

    /// Returns the rights for changing that directory.
    pub(super) fn rights(&self) -> Rights {
        self.rights
    }

    /// Returns the name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file of that name, open for reading, if it is one.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.previous {
            PreviousFile::File(file) => Some(file),
            _ => None,
        }
    }

    /// Returns true if the name does not exist.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.previous, PreviousFile::Missing)
    }

    /// Returns true if the saved file can be restored.
    pub(super) fn can_come_back(&self) -> bool {
        let can = |previous: &PreviousFile| {
            !matches!(previous, PreviousFile::Other(_) | PreviousFile::TooLarge(_))
        };
        can(&self.previous) && can(&self.temporary)
    }

    /// Returns true if the name is that of a directory.
    pub(super) fn is_directory(&self) -> bool {
        matches!(&self.previous, PreviousFile::Other(stat) if kind(stat) == SFlag::S_IFDIR)
    }

    /// Returns the name of a file that is too large to restore, if there is one.
    pub(super) fn too_large(&self) -> Option<String> {
        match (&self.previous, &self.temporary) {
            (PreviousFile::TooLarge(_), _) => Some(self.name.clone()),
            (_, PreviousFile::TooLarge(_)) => Some(temporary(&self.name)),
            _ => None,
        }
    }

    /// Returns true if reading the file would wait for a writer.
    pub(super) fn is_fifo(&self) -> bool {
        self.previous.is_fifo()
    }

    /// Returns true if writing a new file would wait for a reader.
    pub(super) fn is_obstructed_by_fifo(&self) -> bool {
        self.temporary.is_fifo()
    }

    /// Removes an earlier run's unfinished file: ldconfig would write into it and all its hard links.
    pub(super) fn clear_way(&self) -> Result<(), Errno> {
        match self.temporary {
            PreviousFile::File(_) => self
                .rights
                .act(|| remove(&self.parent, &temporary(&self.name))),
            _ => Ok(()),
        }
    }

    /// Restores the file, and the one with the new file's name.
    pub(super) fn put_back(&self) -> Result<(), Errno> {
        match self.rights {
            // Then nothing has changed.
            Rights::Nothing => Ok(()),
            rights => rights.act(|| self.put_back_both()),
        }
    }

    fn put_back_both(&self) -> Result<(), Errno> {
        let temporary = temporary(&self.name);
        if !self.is_obstructed(&temporary)? {
            remove(&self.parent, &temporary)?; // ldconfig may have left it
        }
        let done = self.put_back_name(&temporary);
        match &self.temporary {
            PreviousFile::File(file) => done.and(self.make_again(file, &temporary)?),
            _ => done,
        }
    }

    fn put_back_name(&self, temporary: &str) -> Result<(), Errno> {
        let now = look(&self.parent, &self.name)?;
        match &self.previous {
            PreviousFile::Missing => match now {
                Some(stat) if kind(&stat) == SFlag::S_IFREG => remove(&self.parent, &self.name),
                _ => Ok(()),
            },
            PreviousFile::File(file) => {
                let old = fstat(file)?;
                if now.is_some_and(|now| same(&now, &old)) {
                    return Ok(());
                }
                let like = self.make_again(file, temporary)?;
                // The content matters most: it is restored even if the file cannot get its owner.
                self.rename(temporary).and(like)
            }
            PreviousFile::Link(target) => {
                if readlinkat(&self.parent, self.name.as_str()).as_ref() == Ok(target) {
                    return Ok(());
                }
                symlinkat(target.as_os_str(), &self.parent, temporary)?;
                self.rename(temporary)
            }
            PreviousFile::Other(old) | PreviousFile::TooLarge(old) => match now {
                Some(now) if same(&now, old) => Ok(()),
                _ => Err(Errno::EOPNOTSUPP),
            },
        }
    }

    /// Returns true if an obstacle for ldconfig, other than a file, is still there.
    fn is_obstructed(&self, temporary: &str) -> Result<bool, Errno> {
        match &self.temporary {
            PreviousFile::Missing | PreviousFile::File(_) => Ok(false),
            PreviousFile::Link(target) => {
                Ok(readlinkat(&self.parent, temporary).is_ok_and(|now| now == *target))
            }
            PreviousFile::Other(obstacle) | PreviousFile::TooLarge(obstacle) => {
                let now = look(&self.parent, temporary)?;
                Ok(now.is_some_and(|now| same(&now, obstacle)))
            }
        }
    }

    /// Gives an old file a name again: the file itself if it has another hard link, otherwise a copy. The second result
    /// is the failure to set the copy's properties.
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
        // It may have grown since it was checked.
        let copied = std::io::copy(&mut old.take(MAX_SIZE + 1), &mut new);
        match copied.map_err(|e| errno_of(&e))? {
            0..=MAX_SIZE => Ok(new),
            _ => Err(Errno::EFBIG),
        }
    }

    fn rename(&self, temporary: &str) -> Result<(), Errno> {
        renameat(&self.parent, temporary, &self.parent, self.name.as_str())
    }
}

impl PreviousFile {
    fn at(parent: &OwnedFd, name: &str, descriptors: BorrowedFd<'_>) -> Result<Self, Errno> {
        // By reference first and then reopened, because opening a device or a fifo can have side effects.
        let found = match open_child(parent.as_fd(), name.as_ref()) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(Self::Missing),
            Err(errno) => return Err(errno),
        };
        let stat = inroot::stat(found.as_fd())?;
        match kind(&stat) {
            SFlag::S_IFREG => match inroot::reopen(descriptors, found.as_fd(), OFlag::O_RDONLY) {
                Ok(_) if stat.st_size.cast_unsigned() > MAX_SIZE => Ok(Self::TooLarge(stat)),
                Ok(file) => Ok(Self::File(file.into())),
                // Its owner is not mapped in this user namespace, it is not for the new file's owner, or it is the
                // kernel's: not a reason not to run ldconfig.
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

/// Sets a copy's owner, mode and attributes to the original's, as far as possible.
fn make_like(new: &File, old: &File, stat: &FileStat) -> Result<(), Errno> {
    let made = fstat(new)?;
    let mut mode = Mode::from_bits_truncate(stat.st_mode);
    let mut owned = Ok(());
    if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
        let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        owned = fchown(new, Some(user), Some(group));
        if owned.is_err() {
            mode -= Mode::S_ISUID | Mode::S_ISGID; // the new owner must not inherit set-uid
        }
    }
    // After the owner, whose change clears bits; before the attributes, because an access list is one of them.
    fchmod(new, mode)?;
    owned?;
    xattr::copy(old.as_fd(), new.as_fd())
}

/// Returns the temporary name of ldconfig's new file.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}~")
}

fn look(parent: impl AsFd, name: &str) -> Result<Option<FileStat>, Errno> {
    match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Makes a name a link to `target`, replacing another link.
pub(super) fn relink(parent: impl AsFd + Copy, name: &OsStr, target: &OsStr) -> Result<(), Errno> {
    const TEMPORARY: &str = ".nvc-link~";
    remove(parent, TEMPORARY)?;
    symlinkat(target, parent, TEMPORARY)?;
    renameat(parent, TEMPORARY, parent, name)
}

/// Removes a name that may not exist.
pub(super) fn remove(parent: impl AsFd + Copy, name: &str) -> Result<(), Errno> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        // A read-only root, in which nothing can have been created either.
        Err(Errno::EROFS) if look(parent, name)?.is_none() => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn same(one: &FileStat, other: &FileStat) -> bool {
    inroot::identity(one) == inroot::identity(other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, chown};

    /// A container's owner has a file of root in his directory: undo makes no copy that is his.
    #[test]
    #[ignore = "needs root"]
    fn a_secret_is_not_copied() {
        const OWNER: u32 = 100_000;
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(OWNER), Some(OWNER)).unwrap();
        let take = |rights| {
            let parent = inroot::RootDir::open(dir.path()).unwrap().into();
            let descriptors = inroot::own_descriptors().unwrap();
            SavedFile::take(parent, rights, "list", descriptors.as_fd()).unwrap()
        };
        let in_thread = || {
            let _ = (
                nix::unistd::setfsgid(Gid::from_raw(OWNER)),
                nix::unistd::setfsuid(Uid::from_raw(OWNER)),
            );
            // The change of the user has lowered them.
            let mut own = crate::sys::capabilities::Capabilities::read().unwrap();
            own.effective = own.permitted;
            own.set().unwrap();
            for rights in [Rights::AsOwner, Rights::Full] {
                for name in ["list", "list~"] {
                    let path = dir.path().join(name);
                    fs::write(&path, "secret").unwrap();
                    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                        .unwrap();
                    chown(&path, Some(0), Some(0)).unwrap();
                    let kept = take(rights);
                    assert!(kept.file().is_none() && !kept.can_come_back(), "{name}");
                    fs::remove_file(&path).unwrap();
                    let _ = kept.put_back();
                    let left = fs::read_dir(dir.path()).unwrap();
                    assert_eq!(left.count(), 0, "{name} {rights:?}");
                }
            }
            // The owner's own file comes back.
            fs::write(dir.path().join("list"), "old").unwrap();
            let kept = take(Rights::AsOwner);
            fs::remove_file(dir.path().join("list")).unwrap();
            kept.put_back().unwrap();
            let list = fs::metadata(dir.path().join("list")).unwrap();
            assert_eq!(list.uid(), OWNER);
        };
        std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap());
    }
}
