//! Writes changed configuration files.
//!
//! A file keeps its mode and owner, a symlink to it stays, and a reader sees the old text or the new one.

use std::path::{Path, PathBuf};

use libnvc::Result;
use nix::errno::Errno;
use nvc_hostfile::{HostFile, text};

/// Mode of new files, less the umask.
const MODE: u32 = 0o644;

/// A file's text before and after; None if the file does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    /// Current content.
    pub(crate) before: Option<String>,
    /// New content.
    pub(crate) after: Option<String>,
}

impl Change {
    /// Returns true if there is a change.
    pub(crate) fn is_needed(&self) -> bool {
        self.before != self.after
    }

    /// Writes or removes the file, which is the one that was read.
    pub(crate) fn carry_out(&self, file: HostFile) -> Result<()> {
        match &self.after {
            _ if !self.is_needed() => Ok(()),
            Some(text) => file.replace(text, MODE),
            None => file.remove(),
        }
    }
}

/// The longest file that is read. The kernel's list of modules has 1 MiB.
const MAX_SIZE: usize = 4 << 20;

/// Reads a file that stays as it is; None if it is missing.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match nvc_hostfile::read(path, MAX_SIZE) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        read => text(path, read?).map(Some),
    }
}
