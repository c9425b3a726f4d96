//! Reads a root's /etc/ld.so.conf and what it includes: the directories, and when that was last changed.
//!
//! The image chooses what is read, so everything is bounded. It can put anything in the place of these files, and
//! another thing a moment later: each is looked at by reference, and only a regular file is opened, by that descriptor.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{FileStat, SFlag};

use super::conf::{self, Line};
use crate::inroot::{self, Image};
use crate::sys::directory;

const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 64 << 10;
/// Of all files together; real images have a few dozen.
const MOST_LINES: usize = 4096;
/// Names that are looked at in directories of such files, all together.
const MOST_NAMES: usize = 1 << 16;

/// When something was last changed: seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: i64,
}

impl Time {
    /// When a file's content was last changed.
    pub(crate) fn modified(stat: &FileStat) -> Self {
        Self {
            seconds: stat.st_mtime,
            nanoseconds: stat.st_mtime_nsec,
        }
    }

    /// Whether this is after `other`. Archives keep whole seconds, so where one time has nothing else, no more counts.
    pub(crate) fn is_after(self, other: Self) -> bool {
        if self.nanoseconds == 0 || other.nanoseconds == 0 {
            self.seconds > other.seconds
        } else {
            self > other
        }
    }
}

/// What ld.so.conf says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    /// The directories, in their order.
    pub(crate) directories: Vec<PathBuf>,
    /// Times of change: of the file, of those it includes and of the directories they are looked up in.
    pub(crate) times: Vec<Time>,
    /// Whether it was more than is read.
    pub(crate) too_large: bool,
}

/// A file of the configuration is a fifo: reading it would wait for a writer that never comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fifo(pub(crate) PathBuf);

impl Configuration {
    /// Reads it. Files included by included ones are not followed further.
    pub(crate) fn read(image: Image<'_>) -> Result<Self, Fifo> {
        let mut all = Self::default();
        let mut names = MOST_NAMES;
        let (mut files, mut seen) = (0, 0);
        for line in all.lines(image, Path::new("/etc/ld.so.conf"))? {
            seen += 1;
            match line {
                Line::Directory(path) => all.directories.push(path),
                Line::Include(directory, pattern) => {
                    for file in all.included(image, &directory, &pattern, &mut names) {
                        files += 1;
                        let lines = all.lines(image, &file)?;
                        seen += lines.len();
                        all.directories
                            .extend(lines.into_iter().filter_map(|line| match line {
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
                all.too_large = true;
                break;
            }
        }
        all.directories.truncate(MOST_LINES);
        Ok(all)
    }

    /// The files that an `include` means; `names` is how many names may still be looked at.
    fn included(
        &mut self,
        image: Image<'_>,
        directory: &Path,
        pattern: &[u8],
        names: &mut usize,
    ) -> Vec<PathBuf> {
        if conf::is_plain(pattern) {
            return vec![directory.join(OsStr::from_bytes(pattern))];
        }
        let Ok(found) = image.root.resolve_directory(directory) else {
            return Vec::new();
        };
        self.note(found.as_fd());
        let mut files = Vec::new();
        if let Ok(fd) = inroot::open_to_list(&found) {
            // A listing that breaks off leaves what was found so far.
            let _ = directory::list(fd.as_fd(), |entry| {
                *names = names.saturating_sub(1);
                if *names > 0 && conf::matches(pattern, entry.name.as_bytes()) {
                    files.push(directory.join(entry.name));
                }
            });
        }
        files
    }

    /// The lines of a file, none if it is not one or cannot be read: so it is for ldconfig too.
    fn lines(&mut self, image: Image<'_>, path: &Path) -> Result<Vec<Line>, Fifo> {
        let mut text = Vec::new();
        if let Ok(found) = image.root.resolve(path) {
            if self.note(found.as_fd()) == Some(SFlag::S_IFIFO) {
                return Err(Fifo(path.to_owned()));
            }
            if let Ok((file, _)) = image.open_file(found.as_fd()) {
                text.reserve(4096);
                let _ = file.take(MOST_BYTES).read_to_end(&mut text);
            }
        }
        self.too_large |= text.len() as u64 >= MOST_BYTES;
        Ok(conf::parse(&text))
    }

    /// Remembers when something was changed; tells what it is.
    fn note(&mut self, fd: BorrowedFd<'_>) -> Option<SFlag> {
        let stat = inroot::stat(fd).ok()?;
        self.times.push(Time::modified(&stat));
        Some(inroot::kind(&stat))
    }
}
