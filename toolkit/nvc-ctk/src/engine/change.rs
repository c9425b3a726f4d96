//! Writes changed configuration files.
//!
//! A file keeps its mode and owner, a symlink to it stays, and a reader sees the old text or the new one.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use libnvc::Result;
use nvc_hostfile::{HostFile, system};

use super::record::{self, Record};

/// Mode of new files, less the umask.
const MODE: u32 = 0o644;

/// Larger attributes go to a file: ext4 has one block for all of a file's attributes.
const MAX_ATTRIBUTE_SIZE: usize = 3 << 10;

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

    /// Writes or removes the file, and stores the undo record. `file` is the one that was read. The record of a text that
    /// stays is stored only if it `is_new`.
    pub(crate) fn carry_out(
        &self,
        file: HostFile,
        record: Option<&Record>,
        is_new: bool,
    ) -> Result<()> {
        if !self.is_needed() && !is_new {
            return Ok(());
        }
        // The record first, so that a changed file can always be restored. It is stored with the file if the filesystem
        // supports that.
        let attribute = record.map(Record::to_text);
        let attribute = attribute.filter(|text| text.len() <= MAX_ATTRIBUTE_SIZE);
        let directory = Path::new(record::DIRECTORY);
        match (&self.after, attribute) {
            (Some(text), Some(attribute)) => {
                let is_kept = file.replace(text, MODE, Some(&attribute))?;
                record::store(directory, &self.path, record.filter(|_| !is_kept))
            }
            (after, _) => {
                record::store(directory, &self.path, record)?;
                match after {
                    Some(text) => file.replace(text, MODE, None).map(drop),
                    None => file.remove(),
                }
            }
        }
    }
}

/// Reads a configuration file that stays as it is; None if it is missing.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => nvc_hostfile::text(path, bytes).map(Some),
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(system("open failed", path, &error)),
    }
}
