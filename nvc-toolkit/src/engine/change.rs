//! Writes changed configuration files.
//!
//! A file keeps its mode and owner, a link to it stays a link, and a reader finds the old text or the new one.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};

use crate::cdi::registry::system;

/// A file's text before and after; None where there is no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// What it holds now.
    pub before: Option<String>,
    /// What it is to hold.
    pub after: Option<String>,
}

impl Change {
    /// Whether there is anything to do.
    pub fn is_needed(&self) -> bool {
        self.before != self.after
    }

    /// Writes or removes the file.
    pub fn carry_out(&self) -> Result<()> {
        match &self.after {
            _ if !self.is_needed() => Ok(()),
            Some(text) => write(&self.path, text),
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() != IoKind::NotFound => {
                    Err(system("unlink failed", &self.path, &error))
                }
                _ => Ok(()),
            },
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

/// Replaces a file's text, or makes the file and the directories above it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    // A link is followed once, here, so that the rename replaces the file and not the link.
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
        let text = format!("{} is no file name", path.display());
        Error::new(ErrorKind::InvalidArgument, text)
    })?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = directory.join(temporary);
    let fill = || -> std::io::Result<()> {
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        if let Some(old) = &old {
            chown(&temporary, Some(old.uid()), Some(old.gid()))?;
        }
        let mode = old.as_ref().map_or(0o644, |old| old.mode() & 0o7777);
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    fill().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        system("write failed", &path, &error)
    })
}
