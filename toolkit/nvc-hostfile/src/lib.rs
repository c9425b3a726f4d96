//! Reads, replaces and removes the host's files, by descriptor.
//!
//! Root edits files of others: of a user whose rootless docker it configures, or of users who may write to the
//! directory. Those may exchange any name for a link at any time. So a file's directory is opened once, and everything
//! happens in it. A file that is *edited* must be in a directory where only root and the caller can exchange it;
//! otherwise root would give an owner, a mode or a text to a file that another user chose. A *new* file may be
//! anywhere: it belongs to the caller and is put at its name without following a link.
//!
//! [`HandedPaths`] judges paths that others open later, [`programs`] finds the host's programs, and [`ours`] recognises those of this build.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use libnvc::trust::Caller;
use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use walk::{PathTrust, Place, failed, find};

pub mod cause;
pub mod draft;
pub mod ours;
pub mod programs;
pub mod shell;

mod attributes;
mod handed;
mod program;
mod refusal;
mod walk;

use draft::{Like, put};
pub use handed::HandedPaths;
pub use program::check_program;
pub use walk::kind;

/// Size limit of files that are read; configurations and specifications are far smaller.
const MAX_SIZE: usize = 64 << 20;

/// The way out if the kernel refuses to replace or remove a file because something is mounted on it.
const MOUNTED: &str = "something is mounted on this file: write to the file behind the mount, or mount its directory instead";

/// The way out if the file system is read-only.
const READ_ONLY: &str = "its file system is read-only, as /etc of an image-based system: change the file in the image, or \
                         name another one that the program reads";

/// A file to be edited, and its text. The file that was read is the one that is replaced.
#[derive(Debug)]
pub struct HostFile {
    path: PathBuf,
    place: Place,
    old: Option<File>,
    text: Option<String>,
}

impl HostFile {
    /// Opens and reads a file; it need not exist. A link to it is followed.
    ///
    /// # Errors
    /// It is in a directory of a user other than root and the caller, cannot be read, or is not text.
    pub fn open(path: &Path) -> Result<Self> {
        Self::find(path, PathTrust::Trusted)
    }

    /// Opens a file in any directory. Links of other users are not followed.
    ///
    /// # Errors
    /// It cannot be read, or is not text.
    pub fn open_anywhere(path: &Path) -> Result<Self> {
        Self::find(path, PathTrust::Any)
    }

    fn find(path: &Path, way: PathTrust) -> Result<Self> {
        let place = find(Caller::current(), path, way, true)?;
        let old = existing(&place).map_err(|errno| failed(path, errno))?;
        let text = old
            .as_ref()
            .map(|file| text(path, content(path, file, MAX_SIZE)?));
        let text = text.transpose()?;
        Ok(Self {
            path: path.into(),
            place,
            old,
            text,
        })
    }

    /// Returns the path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text; None if there is no file.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Returns true if there is a file and no user but root and the caller may write to it.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let (directory, name) = (self.place.directory(), &self.place.name);
        let stat = self.old.as_ref().and_then(|file| fstat(file).ok());
        stat.is_some_and(|stat| {
            let caller = Caller::current();
            caller.file(&self.path, directory, name, &stat).is_none()
        })
    }

    /// Replaces the text. The file keeps owner, mode and attributes; a new one has this mode, less the umask. A file that
    /// the caller may write, but not replace by one of the same owner and group, is written in place.
    ///
    /// # Errors
    /// It cannot be written, or another file has its name by now.
    pub fn replace(mut self, text: &str, mode: u32) -> Result<()> {
        self.place.make_directory()?;
        self.check_name()?;
        let like = self.old.as_ref().map_or(Like::new(mode), Like::all_of);
        let place = &self.place;
        let written = match put(place.directory(), &place.name, text.as_bytes(), &like) {
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => {
                self.rewrite(text).map_err(|_| error)
            }
            written => written,
        };
        written.map_err(|error| not_written(&self.path, &error))
    }

    /// Writes into the file that was read.
    fn rewrite(&self, text: &str) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let name = self.place.name.as_os_str();
        let file = File::from(openat(self.place.directory(), name, flags, Mode::empty())?);
        let old = self.old.as_ref().ok_or(Errno::ENOENT)?.metadata()?;
        let new = file.metadata()?;
        if (old.dev(), old.ino()) != (new.dev(), new.ino()) {
            return Err(Errno::ESTALE.into());
        }
        file.set_len(0)?;
        (&file).write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Removes the file if it exists.
    ///
    /// # Errors
    /// It cannot be removed, or another file has its name by now.
    pub fn remove(&self) -> Result<()> {
        self.check_name()?;
        if self.old.is_none() {
            return Ok(());
        }
        unlinkat(
            self.place.directory(),
            self.place.name.as_os_str(),
            UnlinkatFlags::NoRemoveDir,
        )
        .map_err(|errno| with_way_out(Error::file("unlink failed", &self.path, errno)))
    }

    /// Fails if the name is not that of the file that was read.
    fn check_name(&self) -> Result<()> {
        if self.place.lacks_directory() {
            return Ok(());
        }
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        let is_same = match (
            fstatat(self.place.directory(), self.place.name.as_os_str(), flags),
            &self.old,
        ) {
            (Ok(found), Some(old)) => {
                fstat(old).is_ok_and(|old| (old.st_dev, old.st_ino) == (found.st_dev, found.st_ino))
            }
            (Err(Errno::ENOENT), None) => true,
            _ => false,
        };
        if is_same {
            return Ok(());
        }
        let cause = "it was replaced after it had been read";
        Err(Error::fault(ErrorKind::System, self.path.display(), cause).hint("run it again"))
    }
}

/// Writes a file that the caller names as output. An old one keeps its owner, mode and attributes if no other user
/// could have put it there; a new one has the mode 0644, less the umask. Writes into a device or an open file, such as
/// /dev/stdout.
///
/// # Errors
/// It cannot be written, or a directory on the way is another user's link.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let mut place = find(Caller::current(), path, PathTrust::Any, true)?;
    place.make_directory()?;
    let written = if place.is_trusted() {
        replace_or_write(&place, text.as_bytes())
    } else {
        put(
            place.directory(),
            &place.name,
            text.as_bytes(),
            &Like::new(0o644),
        )
    };
    written.map_err(|error| not_written(path, &error))
}

/// Replaces a file, or writes into a device or an open file, in a directory where only root and the caller can exchange
/// files.
fn replace_or_write(place: &Place, text: &[u8]) -> io::Result<()> {
    let name = place.name.as_os_str();
    let found = fstatat(place.directory(), name, AtFlags::AT_SYMLINK_NOFOLLOW);
    let way = match found {
        _ if place.is_open_file => Some(OFlag::O_TRUNC),
        Ok(found) if kind(&found) != SFlag::S_IFREG => Some(OFlag::O_NOFOLLOW),
        _ => None,
    };
    if let Some(way) = way {
        let flags = OFlag::O_WRONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | way;
        let file = openat(place.directory(), name, flags, Mode::empty())?;
        return File::from(file).write_all(text);
    }
    let old = existing(place)?;
    let like = old.as_ref().map_or(Like::new(0o644), Like::all_of);
    put(place.directory(), &place.name, text, &like)
}

/// Replaces a file by one that belongs to the caller and has this mode, or creates it and its parent directories. A
/// link at its name is replaced too.
///
/// # Errors
/// As [`write`].
pub fn create(path: &Path, text: &[u8], mode: u32) -> Result<()> {
    let mut place = find(Caller::current(), path, PathTrust::Any, false)?;
    place.make_directory()?;
    put(place.directory(), &place.name, text, &Like::exactly(mode))
        .map_err(|error| not_written(path, &error))
}

/// Opens the regular file at a place.
fn existing(place: &Place) -> Result<Option<File>, Errno> {
    if place.lacks_directory() {
        return Ok(None);
    }
    let flags = OFlag::O_RDONLY
        | OFlag::O_NOFOLLOW
        | OFlag::O_NONBLOCK
        | OFlag::O_NOCTTY
        | OFlag::O_CLOEXEC;
    match openat(
        place.directory(),
        place.name.as_os_str(),
        flags,
        Mode::empty(),
    ) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Reads a regular file as [`content`] does. A fifo in its place does not block.
///
/// # Errors
/// It cannot be opened; those of [`content`].
pub fn read(path: &Path, most: usize) -> Result<Vec<u8>> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = File::options().read(true).custom_flags(flags).open(path);
    content(
        path,
        &file.map_err(|error| system("open failed", path, &error))?,
        most,
    )
}

/// Returns the bytes of a regular file, of at most `most` bytes. A file of another user, who may want this program to run
/// out of memory, has at most 64 KiB.
///
/// # Errors
/// It is not regular, is larger, or cannot be read.
fn content(path: &Path, file: &File, most: usize) -> Result<Vec<u8>> {
    let failed = |error: io::Error| system("open failed", path, &error);
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        let cause = "it is not a regular file";
        return Err(Error::fault(
            ErrorKind::InvalidArgument,
            path.display(),
            cause,
        ));
    }
    let (limit, cause) = if Caller::current().is_other(facts.uid()) {
        let cause = "it is another user's, and larger than 64 KiB".into();
        (64 << 10, cause)
    } else {
        (most, format!("it is larger than {} MiB", most >> 20))
    };
    bounded(file, limit).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => Error::fault(ErrorKind::Malformed, path.display(), cause),
        _ => failed(error),
    })
}

/// Reads to the end, at most `most` bytes.
///
/// # Errors
/// There are more, or they cannot be read.
pub fn bounded(from: impl io::Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        let text = format!("it is larger than {} MiB", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Returns a file's text.
pub fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let text = format!("{}: {error}", path.display());
        Error::new(ErrorKind::Malformed, text)
    })
}

fn not_written(path: &Path, error: &io::Error) -> Error {
    with_way_out(system("write failed", path, error))
}

/// Adds the way out of an error of an operation that changes files.
fn with_way_out(error: Error) -> Error {
    match error.errno() {
        Some(Errno::EBUSY) => error.hint(MOUNTED),
        Some(Errno::EROFS) => error.hint(READ_ONLY),
        Some(Errno::EACCES | Errno::EPERM) if !geteuid().is_root() => {
            error.hint("run the command as root, with sudo")
        }
        _ => error,
    }
}

/// Returns the error of an operation on a file.
pub fn system(operation: &str, path: impl AsRef<Path>, error: &io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    Error::file(operation, path, errno)
}

#[cfg(test)]
mod tests;
