//! Reads a root's /etc/ld.so.conf and the files it includes: the directories, and the last time of change.
//!
//! The image controls what is read, so everything is bounded. It can replace these files with anything at any time: each
//! is checked by an `O_PATH` descriptor first, and only a regular file is then opened, through that descriptor.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};

use super::conf::{self, Line};
use crate::directory;
use crate::inroot::{self, Image};

const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 64 << 10;
/// Limit for all files together; real images have a few dozen.
const MOST_LINES: usize = 4096;
/// How long all of this may take.
const LONGEST: Duration = Duration::from_secs(10);
/// Limit of directory entries examined, all directories together.
const MOST_NAMES: usize = 1 << 16;

/// A time of change: seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: i64,
}

impl Time {
    /// The modification time of a file.
    pub(crate) fn modified(stat: &FileStat) -> Self {
        Self {
            seconds: stat.st_mtime,
            nanoseconds: stat.st_mtime_nsec,
        }
    }

    /// Returns true if this is after `other`. Archives keep whole seconds only: if either time has no nanoseconds, seconds
    /// are compared.
    pub(crate) fn is_after(self, other: Self) -> bool {
        if self.nanoseconds == 0 || other.nanoseconds == 0 {
            self.seconds > other.seconds
        } else {
            self > other
        }
    }
}

/// The content of ld.so.conf.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    /// The directories, in their order.
    pub(crate) directories: Vec<PathBuf>,
    /// Times of change of the file, the files it includes and the directories of those.
    pub(crate) times: Vec<Time>,
    /// True if a limit was reached.
    pub(crate) too_large: bool,
}

/// A configuration file at which ldconfig would wait, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) path: PathBuf,
    pub(crate) why: &'static str,
}

/// Why a file blocks.
pub(crate) const FIFO: &str = "it is a fifo";
pub(crate) const KERNEL: &str = "it is a file that the kernel makes up";
pub(crate) const LEASE: &str = "another process holds a lease on it";

impl Configuration {
    /// Reads ld.so.conf. Includes of included files are not followed.
    pub(crate) fn read(image: Image<'_>) -> Result<Self, Blocks> {
        let mut all = Self::default();
        let mut names = MOST_NAMES;
        let until = Instant::now() + LONGEST;
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
                        if files > MOST_FILES || seen > MOST_LINES || Instant::now() > until {
                            break;
                        }
                    }
                }
            }
            let too_many = files > MOST_FILES || seen > MOST_LINES || names == 0;
            if too_many || Instant::now() > until {
                all.too_large = true;
                break;
            }
        }
        all.directories.truncate(MOST_LINES);
        Ok(all)
    }

    /// Lists the files that an `include` matches; `names` is the remaining limit of directory entries.
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
            // If the listing fails midway, keep the entries found so far.
            let _ = directory::list(fd.as_fd(), names, |entry| {
                // One more than will be read.
                let has_room = files.len() <= MOST_FILES;
                if has_room && conf::matches(pattern, entry.name.as_bytes()) {
                    files.push(directory.join(entry.name));
                }
            });
        }
        files
    }

    /// Reads the lines of a file; no lines if it is not a file or unreadable, like ldconfig.
    fn lines(&mut self, image: Image<'_>, path: &Path) -> Result<Vec<Line>, Blocks> {
        let mut text = Vec::new();
        if let Ok(found) = image.root.resolve(path) {
            let blocks = |why| {
                let path = path.to_owned();
                Err(Blocks { path, why })
            };
            if self.note(found.as_fd()) == Some(SFlag::S_IFIFO) {
                return blocks(FIFO);
            }
            match image.open_file(found.as_fd()) {
                Ok((file, _)) => {
                    text.reserve(4096);
                    let _ = file.take(MOST_BYTES).read_to_end(&mut text);
                }
                Err(Errno::EOPNOTSUPP) => return blocks(KERNEL),
                Err(Errno::EAGAIN) => return blocks(LEASE),
                Err(_) => {}
            }
        }
        self.too_large |= text.len() as u64 >= MOST_BYTES;
        Ok(conf::parse(&text))
    }

    /// Records a file's time of change and returns its type.
    fn note(&mut self, fd: BorrowedFd<'_>) -> Option<SFlag> {
        let stat = inroot::stat(fd).ok()?;
        self.times.push(Time::modified(&stat));
        Some(inroot::kind(&stat))
    }
}
