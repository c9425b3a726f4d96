//! Looks files up below the driver root.

use std::fs;
use std::path::{Path, PathBuf};

use libnvc::host::DriverRoot;
use libnvc::{HostPath, Result};

use crate::programs::matches;

/// The driver root.
#[derive(Debug)]
pub(super) struct Tree {
    root: DriverRoot,
    path: PathBuf,
}

impl Tree {
    pub(super) fn open(path: &Path) -> Result<Self> {
        // A root that is a link, or relative, would not be the beginning of what is found below it.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        Ok(Self {
            root: DriverRoot::open(&path)?,
            path,
        })
    }

    /// The path on the host of something below the root.
    pub(super) fn on_host(&self, path: &HostPath) -> String {
        path.below(&self.path).to_string_lossy().into_owned()
    }

    /// Where a path leads, links resolved.
    pub(super) fn real(&self, path: &Path) -> Option<HostPath> {
        self.root
            .real_path(&HostPath::new(path))
            .ok()
            .map(|(_, real)| real)
    }

    /// The same for something that is not a directory.
    pub(super) fn real_file(&self, path: &Path) -> Option<HostPath> {
        let real = self.real(path)?;
        let is_directory = fs::metadata(self.on_host(&real)).is_ok_and(|facts| facts.is_dir());
        (!is_directory).then_some(real)
    }

    /// The files of a directory whose names fit a pattern, links resolved, each once, sorted by name.
    pub(super) fn files(&self, directory: &Path, pattern: &str) -> Vec<HostPath> {
        let mut found: Vec<HostPath> = Vec::new();
        for name in self.names(directory, pattern) {
            if let Some(real) = self.real_file(&directory.join(name))
                && !found.contains(&real)
            {
                found.push(real);
            }
        }
        found
    }

    /// The names in a directory that fit a pattern, sorted.
    pub(super) fn names(&self, directory: &Path, pattern: &str) -> Vec<String> {
        let Some(real) = self.real(directory) else {
            return Vec::new();
        };
        let entries = fs::read_dir(self.on_host(&real))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| matches(pattern, name)).collect();
        names.sort();
        names
    }

    /// The text of the link at a path.
    pub(super) fn link(&self, path: &HostPath) -> Option<PathBuf> {
        fs::read_link(self.on_host(path)).ok()
    }

    /// The SONAME of a library.
    pub(super) fn soname(&self, path: &HostPath) -> Option<String> {
        libnvc::host::soname(self.root.open_file(path).ok()?)
    }
}
