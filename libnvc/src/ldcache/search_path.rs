//! Finds the directories that an image's ldconfig searches without arguments, in its order: those of ld.so.conf, then
//! its defaults.
//!
//! The defaults depend on the image's distribution, not on the host's.

use std::path::{Path, PathBuf};

use super::BUILT_IN;
use super::configured::{Blocks, Configuration};
use crate::container::Layout;
use crate::inroot::{Identity, Image, identity_of};

/// The directories of one root.
#[derive(Debug)]
pub(crate) struct SearchPath {
    /// What ld.so.conf says.
    pub(crate) configuration: Configuration,
    /// The existing directories, each under its first name.
    directories: Vec<(PathBuf, Identity)>,
}

impl SearchPath {
    /// Does the same for an image of this layout.
    pub(crate) fn of(image: Image<'_>, layout: &Layout) -> Result<Self, Blocks> {
        Self::read(image, layout.libs_dir.as_path().ends_with(super::triplet()))
    }

    /// Reads a root's ld.so.conf, and finds the directories.
    pub(crate) fn read(image: Image<'_>, is_multiarch: bool) -> Result<Self, Blocks> {
        let configuration = Configuration::read(image)?;
        let mut directories: Vec<(PathBuf, Identity)> = Vec::new();
        let configured = configuration.directories.iter().cloned();
        for path in configured.chain(defaults(is_multiarch)) {
            // Like ldconfig, which leaves out what it cannot open.
            let found = image.root.resolve_directory(&path);
            let Ok(identity) = found.and_then(identity_of) else {
                continue;
            };
            if directories.iter().all(|(_, known)| *known != identity) {
                directories.push((path, identity));
            }
        }
        Ok(Self {
            configuration,
            directories,
        })
    }

    /// Returns a directory's position, and the name under which it is searched; None if it is not.
    pub(crate) fn find(&self, directory: Identity) -> Option<(usize, &Path)> {
        let mut all = self.directories.iter().enumerate();
        let (position, (path, _)) = all.find(|(_, (_, known))| *known == directory)?;
        Some((position, path))
    }
}

/// Returns the default directories of an image's ldconfig: Debian's, or those of all others.
pub(crate) fn defaults(is_multiarch: bool) -> Vec<PathBuf> {
    let all = if is_multiarch {
        let of_debian = |parent: &str| format!("{parent}/{}", super::triplet());
        [
            of_debian("/lib"),
            of_debian("/usr/lib"),
            "/lib".into(),
            "/usr/lib".into(),
        ]
    } else {
        BUILT_IN.map(String::from)
    };
    all.map(PathBuf::from).into()
}
