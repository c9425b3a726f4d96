//! Opens the directory of a file of the host, one component after the other. Unlike libnvc's walk, this one has no root
//! to stay in: it can begin at the current directory, and `..` leads out of it.
//!
//! A path that is looked up twice can name two files. So the directory is opened once, links are read and followed
//! here, and every directory on the way is judged by its descriptor.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use libnvc::trust::{Caller, Exposed, is_sticky};
use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::refusal::refusal;
use super::with_way_out;

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;

/// What may be on the way to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathTrust {
    /// Only directories and links of root and the caller: the file is edited, so it must be the one that was read.
    Trusted,
    /// Any directory, but no link of another user: a new file is made.
    Any,
}

/// A name in an open directory.
#[derive(Debug)]
pub(super) struct Place {
    walk: Walk,
    /// Directories to create before the file.
    missing: Vec<OsString>,
    pub(super) name: OsString,
    /// The name is a link of procfs to an open file, such as /dev/stdout's.
    pub(super) is_open_file: bool,
}

/// Returns the place of a file. A link in the last component is followed if it may be followed and `last` is true.
pub(super) fn find(caller: Caller, path: &Path, way: PathTrust, last: bool) -> Result<Place> {
    if path.file_name().is_none() {
        let text = format!("{} is not a file name", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    begin(caller, path, way)?.through(parts(path), last)
}

/// Opens a directory. One that does not exist has a name in the last that does.
pub(super) fn find_directory(caller: Caller, path: &Path) -> Result<Place> {
    let mut parts = parts(path);
    parts.push_back(".".into());
    begin(caller, path, PathTrust::Any)?.through(parts, true)
}

fn begin(caller: Caller, path: &Path, way: PathTrust) -> Result<Walk> {
    let start = if path.is_absolute() { "/" } else { "." };
    let mut walk = Walk {
        file: path.into(),
        way,
        caller,
        directory: directory(AT_FDCWD, OsStr::new(start)).map_err(|e| failed(path, e))?,
        at: start.into(),
        is_sticky: false,
        exposed: None,
        links: 0,
    };
    let stat = walk.stat(walk.directory.as_fd())?;
    walk.judge(&stat)?;
    Ok(walk)
}

impl Place {
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.walk.directory.as_fd()
    }

    /// Returns true if only root and the caller can exchange the file.
    pub(super) fn is_trusted(&self) -> bool {
        self.exposed().is_none()
    }

    /// Returns who else can exchange the file.
    pub(super) fn exposed(&self) -> Option<&Exposed> {
        self.walk.exposed.as_ref()
    }

    /// Returns true if the directory has to be created.
    pub(super) fn lacks_directory(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Creates the missing directories.
    pub(super) fn make_directory(&mut self) -> Result<()> {
        for part in std::mem::take(&mut self.missing) {
            let walk = &mut self.walk;
            let at = walk.at.join(&part);
            let failed = |errno| with_way_out(Error::file("mkdir failed", &at, errno));
            match mkdirat(
                &walk.directory,
                part.as_os_str(),
                Mode::from_bits_truncate(0o777),
            ) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let made = directory(walk.directory.as_fd(), &part).map_err(failed)?;
            let stat = walk.stat(made.as_fd())?;
            walk.enter(made, &part, &stat)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Walk {
    /// The whole path, for messages.
    file: PathBuf,
    way: PathTrust,
    caller: Caller,
    directory: OwnedFd,
    /// The path of `directory`, for messages.
    at: PathBuf,
    is_sticky: bool,
    /// The first one on the way, if strangers are allowed.
    exposed: Option<Exposed>,
    links: u32,
}

impl Walk {
    fn through(mut self, mut rest: VecDeque<OsString>, follow_last: bool) -> Result<Place> {
        while let Some(part) = rest.pop_front() {
            let is_last = rest.is_empty();
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let found = match openat(&self.directory, part.as_os_str(), flags, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::ENOENT) if !rest.iter().any(|part| part == "..") => {
                    rest.push_front(part);
                    return Ok(self.place(rest));
                }
                Err(errno) => return Err(failed(&self.file, errno)),
            };
            let stat = self.stat(found.as_fd())?;
            match kind(&stat) {
                SFlag::S_IFDIR if part == "." => return Ok(self.place(VecDeque::from([part]))),
                SFlag::S_IFDIR if is_last => return Err(failed(&self.file, Errno::EISDIR)),
                SFlag::S_IFDIR => self.enter(found, &part, &stat)?,
                SFlag::S_IFLNK => {
                    self.judge_link(&part, &stat)?;
                    let is_followed = follow_last && self.exposed.is_none();
                    let is_open_file = is_last && is_followed && self.is_procfs();
                    if is_last && !is_followed || is_open_file {
                        let mut place = self.place(VecDeque::from([part]));
                        place.is_open_file = is_open_file;
                        return Ok(place);
                    }
                    self.follow(&part, &mut rest)?;
                }
                _ if is_last => {
                    self.judge_file(&part, &stat)?;
                    return Ok(self.place(VecDeque::from([part])));
                }
                _ => return Err(failed(&self.file, Errno::ENOTDIR)),
            }
        }
        Err(failed(&self.file, Errno::EISDIR))
    }

    /// Replaces a link by its target's components.
    fn follow(&mut self, part: &OsStr, rest: &mut VecDeque<OsString>) -> Result<()> {
        if let Some(exposed) = &self.exposed {
            return Err(refusal(exposed, &self.file));
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(failed(&self.file, Errno::ELOOP));
        }
        if self.is_magic(part) {
            let cause = format!(
                "{} is a link of another process",
                self.at.join(part).display()
            );
            let error = Error::fault(ErrorKind::InvalidArgument, self.file.display(), cause);
            return Err(
                error.hint("run the command in the namespaces of that process, with nsenter")
            );
        }
        let target = readlinkat(&self.directory, part);
        let target = PathBuf::from(target.map_err(|errno| failed(&self.file, errno))?);
        for part in parts(&target).into_iter().rev() {
            rest.push_front(part);
        }
        if target.is_absolute() {
            let root = directory(AT_FDCWD, OsStr::new("/"));
            self.directory = root.map_err(|errno| failed(&self.file, errno))?;
            self.at = "/".into();
            let stat = self.stat(self.directory.as_fd())?;
            self.judge(&stat)?;
        }
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd, part: &OsStr, stat: &FileStat) -> Result<()> {
        self.directory = directory;
        self.at.push(part);
        self.judge(stat)
    }

    /// Judges the current directory.
    fn judge(&mut self, stat: &FileStat) -> Result<()> {
        self.is_sticky = is_sticky(stat);
        let directory = self.directory.as_fd();
        let exposed = self.caller.directory(&self.at, directory, stat);
        self.record(exposed)
    }

    /// Judges a link in the current directory. Its owner chose what it leads to, so it counts wherever it is.
    fn judge_link(&mut self, part: &OsStr, stat: &FileStat) -> Result<()> {
        let exposed = self.caller.owner(&self.at.join(part), stat);
        self.record(exposed)
    }

    /// Judges a file in the current directory.
    fn judge_file(&mut self, part: &OsStr, stat: &FileStat) -> Result<()> {
        let exposed = if self.is_sticky {
            self.caller.owner(&self.at.join(part), stat)
        } else {
            None
        };
        self.record(exposed)
    }

    fn record(&mut self, exposed: Option<Exposed>) -> Result<()> {
        match (exposed, self.way) {
            (Some(exposed), PathTrust::Trusted) => Err(refusal(&exposed, &self.file)),
            (exposed, _) => {
                self.exposed = self.exposed.take().or(exposed);
                Ok(())
            }
        }
    }

    /// Returns true if the kernel follows a link of the current directory to an open file, whatever its text says:
    /// /proc/PID/root, cwd, exe and fd/N. In another mount namespace, the text names another file.
    fn is_magic(&self, part: &OsStr) -> bool {
        if !self.is_procfs() {
            return false;
        }
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2(&self.directory, part, how) {
            Ok(_) => false,
            Err(Errno::ELOOP) => true,
            // Before Linux 5.6; these are ordinary links.
            Err(_) => !["self", "thread-self", "mounts", "net"]
                .iter()
                .any(|name| part == *name),
        }
    }

    fn is_procfs(&self) -> bool {
        fstatfs(&self.directory).is_ok_and(|facts| facts.filesystem_type() == PROC_SUPER_MAGIC)
    }

    fn stat(&self, fd: BorrowedFd<'_>) -> Result<FileStat> {
        fstat(fd).map_err(|errno| failed(&self.file, errno))
    }

    fn place(self, mut rest: VecDeque<OsString>) -> Place {
        let name = rest.pop_back().unwrap_or_default();
        Place {
            walk: self,
            missing: rest.into(),
            name,
            is_open_file: false,
        }
    }
}

fn directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Returns the components to walk through.
fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            _ => None,
        })
        .collect()
}

pub(super) fn failed(path: &Path, errno: Errno) -> Error {
    Error::file("open failed", path, errno)
}

/// Returns a file's type.
pub fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}
