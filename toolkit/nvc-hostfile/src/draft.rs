//! Writes a new file beside the old one and renames it: a reader sees the old file or the new one, never a part.
//!
//! Everything happens in a directory that is open, and on the new file's descriptor. So a user who exchanges names in
//! that directory meanwhile can only lose the new file, and changes no file elsewhere. The new file's name is random, so
//! that no user can occupy it before.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::attributes;

/// Limit of names to try.
const MAX_TRIES: u32 = 100;

/// What a new file is like.
#[derive(Clone, Copy, Debug)]
pub struct Like<'a> {
    permissions: Kept<'a>,
    /// The file must survive a crash of the machine.
    pub durable: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kept<'a> {
    /// Mode, less the umask.
    New(u32),
    /// Mode; the umask is ignored.
    Exactly(u32),
    /// Owner, mode and attributes of this file.
    All(&'a File),
    /// Owner, mode and label of this file.
    Label(&'a File),
}

impl<'a> Like<'a> {
    /// The caller's, with a mode from which the umask is subtracted.
    pub(super) fn new(mode: u32) -> Self {
        Self::from(Kept::New(mode))
    }

    /// The caller's, with this mode.
    pub(super) fn exactly(mode: u32) -> Self {
        Self::from(Kept::Exactly(mode))
    }

    /// With owner, mode and attributes of another file. Only for a directory whose files are trusted.
    pub(super) fn all_of(file: &'a File) -> Self {
        Self::from(Kept::All(file))
    }

    /// With owner, mode and SELinux label of another file.
    pub fn label_of(file: &'a File) -> Self {
        Self::from(Kept::Label(file))
    }

    fn from(permissions: Kept<'a>) -> Self {
        Self {
            permissions,
            durable: true,
        }
    }

    /// Applies it to a new file.
    fn apply(&self, new: &File) -> io::Result<()> {
        match self.permissions {
            Kept::New(_) => {}
            Kept::Exactly(mode) => new.set_permissions(Permissions::from_mode(mode))?,
            Kept::All(old) | Kept::Label(old) => {
                let (facts, there) = (old.metadata()?, new.metadata()?);
                // The owner first, because changing it clears mode bits.
                if (there.uid(), there.gid()) != (facts.uid(), facts.gid()) {
                    fchown(new, Some(facts.uid()), Some(facts.gid()))?;
                }
                new.set_permissions(Permissions::from_mode(facts.mode() & 0o7777))?;
            }
        }
        match self.permissions {
            Kept::All(old) => attributes::copy(old, new),
            Kept::Label(old) => attributes::copy_label(old, new)?,
            Kept::New(_) | Kept::Exactly(_) => {}
        }
        Ok(())
    }
}

/// Replaces or creates a file in a directory.
///
/// # Errors
/// The system's. The directory is as before.
pub fn put(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    text: &[u8],
    like: &Like<'_>,
) -> io::Result<()> {
    let draft = Draft::create(directory, name, like)?;
    (&draft.file).write_all(text)?;
    like.apply(&draft.file)?;
    if like.durable {
        draft.file.sync_all()?;
    }
    draft.rename(name)?;
    if like.durable {
        // The rename must survive a crash too; a directory that cannot be synced is not an error.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let _ = openat(directory, ".", flags, Mode::empty()).and_then(nix::unistd::fsync);
    }
    Ok(())
}

/// Returns a number that other users cannot predict: the standard library's hashers have secret keys.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// A new file beside the old one; removed on drop unless it has replaced the old one.
struct Draft<'d> {
    directory: BorrowedFd<'d>,
    name: OsString,
    file: File,
    is_renamed: bool,
}

impl<'d> Draft<'d> {
    fn create(directory: BorrowedFd<'d>, beside: &OsStr, like: &Like<'_>) -> io::Result<Self> {
        let mode = match like.permissions {
            Kept::New(mode) => mode,
            _ => 0o600,
        };
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        for _ in 0..MAX_TRIES {
            let mut name = OsString::from(".");
            name.push(beside);
            name.push(format!(".{:016x}", random()));
            match openat(
                directory,
                name.as_os_str(),
                flags,
                Mode::from_bits_truncate(mode),
            ) {
                Ok(file) => {
                    return Ok(Self {
                        directory,
                        name,
                        file: file.into(),
                        is_renamed: false,
                    });
                }
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::EEXIST.into())
    }

    fn rename(mut self, to: &OsStr) -> io::Result<()> {
        renameat(self.directory, self.name.as_os_str(), self.directory, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // If it cannot be removed, nothing else can be done.
            let _ = unlinkat(
                self.directory,
                self.name.as_os_str(),
                UnlinkatFlags::NoRemoveDir,
            );
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    /// Otherwise another user could occupy all names that will be tried.
    #[test]
    fn names_cannot_be_predicted() {
        let dir = tempfile::tempdir().unwrap();
        let directory = File::open(dir.path()).unwrap();
        let name = || {
            let draft = Draft::create(directory.as_fd(), OsStr::new("x"), &Like::new(0o600));
            let name = draft.unwrap().name.clone();
            name.into_string().unwrap()
        };
        let names = [name(), name(), name()];
        let numbers = names.each_ref().map(|name| {
            let digits = name.strip_prefix(".x.").unwrap();
            u64::from_str_radix(digits, 16).unwrap()
        });
        let [one, other, third] = numbers;
        assert!(one != other && other != third, "{names:?}");
        assert_ne!(
            other.wrapping_sub(one),
            third.wrapping_sub(other),
            "{names:?}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
