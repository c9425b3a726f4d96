//! Writes changed configuration files.
//!
//! A file keeps its mode and owner, a symlink to it stays, and a reader sees the old text or the new one.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};

use super::attributes;
use super::undo::{self, Record};
use crate::cdi::registry::system;

/// Larger attributes go to a file: ext4 has one block for all of a file's attributes.
const LARGEST_ATTRIBUTE: usize = 3 << 10;

/// A file's text before and after; None if the file does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// Current content.
    pub before: Option<String>,
    /// New content.
    pub after: Option<String>,
}

impl Change {
    /// Returns true if there is a change.
    pub fn is_needed(&self) -> bool {
        self.before != self.after
    }

    /// Writes or removes the file, and stores the undo record.
    pub fn carry_out(&self, record: Option<&Record>) -> Result<()> {
        if !self.is_needed() {
            return Ok(());
        }
        // The record first, so that a changed file can always be restored. It is stored with the file if the filesystem
        // supports that.
        let attribute = record.map(Record::to_text);
        let attribute = attribute.filter(|text| text.len() <= LARGEST_ATTRIBUTE);
        let directory = Path::new(undo::DIRECTORY);
        match (&self.after, attribute) {
            (Some(text), Some(attribute)) => {
                if write_with(&self.path, text, Some(&attribute))? {
                    return undo::store(directory, &self.path, None);
                }
                undo::store(directory, &self.path, record)
            }
            (after, _) => {
                undo::store(directory, &self.path, record)?;
                after
                    .as_ref()
                    .map_or_else(|| self.remove(), |text| write(&self.path, text))
            }
        }
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != IoKind::NotFound => {
                Err(system("unlink failed", &self.path, &error))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a configuration file; None if it is missing.
pub fn read(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            Error::new(ErrorKind::Malformed, text)
        }),
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(system("open failed", path, &error)),
    }
}

/// Replaces a file's text, or creates the file and its parent directories.
pub fn write(path: &Path, text: &str) -> Result<()> {
    write_with(path, text, None).map(drop)
}

/// Does the same with our attribute; returns true if the filesystem accepted it.
fn write_with(path: &Path, text: &str, attribute: Option<&str>) -> Result<bool> {
    // Resolve a symlink once, so that the rename replaces the file and not the link.
    let path = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) if error.kind() == IoKind::NotFound && !path.is_symlink() => path.into(),
        Err(error) => return Err(system("open failed", path, &error)),
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory).map_err(|e| system("mkdir failed", directory, &e))?;
    let old = fs::metadata(&path).ok();
    let name = path.file_name().ok_or_else(|| {
        let text = format!("{} is not a file name", path.display());
        Error::new(ErrorKind::InvalidArgument, text)
    })?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = directory.join(temporary);
    let fill = || -> std::io::Result<bool> {
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(if old.is_some() { 0o600 } else { 0o644 })
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        if let Some(old) = &old {
            chown(&temporary, Some(old.uid()), Some(old.gid()))?;
            file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
            attributes::copy(&path, &temporary);
        }
        let kept = attribute.is_some_and(|text| attributes::set(&temporary, text));
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        Ok(kept)
    };
    fill().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        system("write failed", &path, &error)
    })
}
