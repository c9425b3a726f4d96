//! Finds the directories that an image's /etc/ld.so.conf names, and what ldconfig would wait at on its way to them.
//!
//! The image can put anything in the place of these files, and another thing a moment later: each is looked at by
//! reference, and only a regular file is opened, by the descriptor that was looked at.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag};

use super::conf::{self, Line};
use super::memory::each_name;
use crate::apply::target::kind;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, RootDir};

/// Bounds on what an image can make this read.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 64 << 10;
/// Of all files together; real images have a few dozen.
const MOST_LINES: usize = 4096;
/// Names that are looked at in directories of such files, all together.
const MOST_NAMES: usize = 1 << 16;

/// The directories of /etc/ld.so.conf and of what it includes; files included by those are not followed further.
///
/// # Errors
/// One of the files is a fifo.
pub(super) fn directories(root: &RootDir, descriptors: BorrowedFd<'_>) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut names = MOST_NAMES;
    let (mut files, mut seen) = (0, 0);
    for line in lines(root, Path::new("/etc/ld.so.conf"), descriptors)? {
        seen += 1;
        match line {
            Line::Directory(path) => found.push(path),
            Line::Include(directory, pattern) => {
                for file in included(root, &directory, &pattern, &mut names) {
                    files += 1;
                    let lines = lines(root, &file, descriptors)?;
                    seen += lines.len();
                    found.extend(lines.into_iter().filter_map(|line| match line {
                        Line::Directory(path) => Some(path),
                        Line::Include(..) => None,
                    }));
                    if files > MOST_FILES || seen > MOST_LINES {
                        break;
                    }
                }
            }
        }
        if files > MOST_FILES || seen > MOST_LINES || names == 0 {
            log::warn!("the image's /etc/ld.so.conf is too large: not all links would be put back");
            break;
        }
    }
    found.truncate(MOST_LINES);
    Ok(found)
}

/// What is wrong with a fifo in a file's place.
pub(super) fn would_wait(path: &Path) -> Error {
    let text = format!("ldconfig would wait for ever: {}", path.display());
    Error::new(ErrorKind::LdCache, text).because("it is a fifo")
}

/// The files that an `include` means; `names` is how many names may still be looked at.
fn included(root: &RootDir, directory: &Path, pattern: &[u8], names: &mut usize) -> Vec<PathBuf> {
    if conf::is_plain(pattern) {
        return vec![directory.join(OsStr::from_bytes(pattern))];
    }
    let mut files = Vec::new();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = root
        .resolve_directory(directory)
        .and_then(|found| openat(found, ".", flags, Mode::empty()));
    if let Ok(fd) = opened {
        // A listing that breaks off leaves what was found so far.
        let _ = each_name(&fd, |name, _| {
            *names = names.saturating_sub(1);
            if *names > 0 && conf::matches(pattern, name.as_bytes()) {
                files.push(directory.join(name));
            }
        });
    }
    files
}

/// The lines of a file, none if it is not one or cannot be read: so it is for ldconfig too.
fn lines(root: &RootDir, path: &Path, descriptors: BorrowedFd<'_>) -> Result<Vec<Line>> {
    let mut text = Vec::new();
    if let Ok(found) = root.resolve(path) {
        match inroot::stat(found.as_fd()).map(|stat| kind(&stat)) {
            Ok(SFlag::S_IFIFO) => return Err(would_wait(path)),
            Ok(SFlag::S_IFREG) => {
                if let Ok(file) = inroot::reopen(descriptors, found.as_fd(), OFlag::O_RDONLY) {
                    text.reserve(4096);
                    let _ = File::from(file).take(MOST_BYTES).read_to_end(&mut text);
                }
            }
            _ => {}
        }
    }
    Ok(conf::parse(&text))
}
