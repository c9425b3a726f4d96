//! Walks a path below a root by descriptors, one component after the other, for callers that judge or create what is on
//! the way: openat2(2) can only look up.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::readlinkat;

/// The kernel's limit of links in one path.
const MAX_LINKS: usize = 40;

/// A walk; `D` is an open directory, with what the caller knows about it.
pub(crate) struct Walk<D> {
    root: D,
    /// The directories from the root to the current one.
    below: Vec<D>,
    /// The components still to walk, the next one last.
    pending: Vec<OsString>,
    /// Number of links followed, and of components repeated.
    links: usize,
}

impl<D> Walk<D> {
    /// Begins at the root.
    pub(crate) fn begin(root: D, path: &Path) -> Self {
        Self {
            root,
            below: Vec::new(),
            pending: components(path),
            links: 0,
        }
    }

    /// Returns the next name to look up in the current directory, after all `..` before it.
    pub(crate) fn next_name(&mut self) -> Option<OsString> {
        loop {
            let name = self.pending.pop()?;
            if name != ".." {
                return Some(name);
            }
            // The root is its own parent.
            self.below.pop();
        }
    }

    /// Returns true if no component comes after the one returned last.
    pub(crate) fn is_last(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the current directory.
    pub(crate) fn directory(&self) -> &D {
        self.below.last().unwrap_or(&self.root)
    }

    /// Continues in a directory below the current one.
    pub(crate) fn enter(&mut self, directory: D) {
        self.below.push(directory);
    }

    /// Continues at the target of a link in the current directory.
    pub(crate) fn follow(&mut self, link: BorrowedFd<'_>) -> Result<(), Errno> {
        self.count(Errno::ELOOP)?;
        let target = readlinkat(link, "")?;
        if Path::new(&target).is_absolute() {
            self.below.clear();
        }
        self.pending.extend(components(Path::new(&target)));
        Ok(())
    }

    /// Repeats a component that another process has just created; `EEXIST` if this never ends.
    pub(crate) fn again(&mut self, name: OsString) -> Result<(), Errno> {
        self.count(Errno::EEXIST)?;
        self.pending.push(name);
        Ok(())
    }

    /// Returns the current directory at the end of the path.
    pub(crate) fn end(mut self) -> D {
        self.below.pop().unwrap_or(self.root)
    }

    fn count(&mut self, too_many: Errno) -> Result<(), Errno> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(too_many);
        }
        Ok(())
    }
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
