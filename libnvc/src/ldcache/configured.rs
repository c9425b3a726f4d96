//! Reads a root's /etc/ld.so.conf and what it includes: the directories, and when that was last changed.
//!
//! The image chooses what is read, so everything is bounded, and nothing but files and directories is opened.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag};

use super::conf::{self, Line};
use crate::inroot::{self, RootDir};
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

impl Configuration {
    /// Reads it in a root. Files included by included ones are not followed further.
    pub(crate) fn read(root: &RootDir) -> Self {
        let mut all = Self::default();
        let mut names = MOST_NAMES;
        let (mut files, mut seen) = (0, 0);
        for line in all.lines(root, Path::new("/etc/ld.so.conf")) {
            seen += 1;
            match line {
                Line::Directory(path) => all.directories.push(path),
                Line::Include(directory, pattern) => {
                    for file in all.included(root, &directory, &pattern, &mut names) {
                        files += 1;
                        let lines = all.lines(root, &file);
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
        all
    }

    /// The files that an `include` means; `names` is how many names may still be looked at.
    fn included(
        &mut self,
        root: &RootDir,
        directory: &Path,
        pattern: &[u8],
        names: &mut usize,
    ) -> Vec<PathBuf> {
        if conf::is_plain(pattern) {
            return vec![directory.join(OsStr::from_bytes(pattern))];
        }
        let Ok(found) = root.resolve_directory(directory) else {
            return Vec::new();
        };
        self.note(&found);
        let mut files = Vec::new();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        if let Ok(fd) = openat(&found, ".", flags, Mode::empty()) {
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
    fn lines(&mut self, root: &RootDir, path: &Path) -> Vec<Line> {
        // Checked first, since opening a device can be enough to do harm.
        let is_file = root
            .resolve(path)
            .is_ok_and(|fd| self.note(&fd) == Some(SFlag::S_IFREG));
        let mut text = Vec::new();
        if let Some(file) = is_file.then(|| root.open_file(path).ok()).flatten() {
            let _ = file.take(MOST_BYTES).read_to_end(&mut text);
        }
        self.too_large |= text.len() as u64 >= MOST_BYTES;
        conf::parse(&text)
    }

    /// Remembers when something was changed; tells what it is.
    fn note(&mut self, fd: &OwnedFd) -> Option<SFlag> {
        let stat = inroot::stat(fd.as_fd()).ok()?;
        self.times.push(Time::modified(&stat));
        Some(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT)
    }
}
