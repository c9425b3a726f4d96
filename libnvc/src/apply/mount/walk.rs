//! Walks a path inside the container's root by descriptors, one component after the other, and follows links there.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::FileStat;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::apply::opened::OpenDirectory;
use crate::inroot;

/// The kernel's limit of links in one path.
const MAX_LINKS: usize = 40;

/// A mount point.
pub(in crate::apply) struct Target {
    pub(in crate::apply) fd: OwnedFd,
    /// Its parent directory, on the same mount unless the target is itself a mount.
    pub(in crate::apply) directory: Rc<OpenDirectory>,
    /// Its name in that directory.
    pub(in crate::apply) name: OsString,
    /// Its stat; None if it was just created.
    pub(in crate::apply) found: Option<FileStat>,
}

/// A walk from the root, component by component.
pub(super) struct Walk {
    /// The directories from the root to the current one.
    pub(super) stack: Vec<Rc<OpenDirectory>>,
    /// The components still to walk, the next one last.
    pub(super) pending: Vec<OsString>,
    /// Number of links followed, and of lost races.
    links: usize,
}

impl Walk {
    /// Begins at the root.
    pub(super) fn begin(top: OwnedFd, path: &Path) -> Self {
        Self {
            stack: vec![Rc::new(OpenDirectory::from(top))],
            pending: components(path),
            links: 0,
        }
    }

    /// Goes to the parent directory; the root is its own.
    pub(super) fn leave(&mut self) {
        if self.stack.len() > 1 {
            self.stack.pop();
        }
    }

    /// Repeats a component.
    pub(super) fn again(&mut self, name: OsString) -> Result<(), Errno> {
        if self.links >= MAX_LINKS {
            return Err(Errno::EEXIST);
        }
        self.links += 1;
        self.pending.push(name);
        Ok(())
    }

    /// Continues at the target of a link.
    pub(super) fn follow(&mut self, link: &OwnedFd) -> Result<(), Errno> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::ELOOP);
        }
        // A magic link's text names a path in another process's view; the other links (`self`, `mounts`) lead to our
        // own process's directory, and a mount there vanishes with us.
        if is_on_procfs(link.as_fd())? {
            return Err(Errno::ELOOP);
        }
        let text = readlinkat(link, "")?;
        if Path::new(&text).is_absolute() {
            self.stack.truncate(1);
        }
        self.pending.extend(components(Path::new(&text)));
        Ok(())
    }

    /// Returns the current directory: the path ended in `..`, or was the root itself.
    pub(super) fn end(mut self) -> Result<Target, Errno> {
        let last = self.stack.pop().ok_or(Errno::ENOENT)?;
        let fd = last.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|_| Errno::EMFILE)?;
        let stat = inroot::stat(fd.as_fd())?;
        Ok(Target {
            fd,
            directory: last,
            name: ".".into(),
            found: Some(stat),
        })
    }
}

pub(super) fn is_on_procfs(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == PROC_SUPER_MAGIC)
}

/// Returns the components of a path, the last one first; omits `.` and leading slashes.
fn components(path: &Path) -> Vec<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}
