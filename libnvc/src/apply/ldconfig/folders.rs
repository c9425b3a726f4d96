//! Determines where in the search order of the container's loader the folders of a hook belong.
//!
//! A folder that the image's configuration or loader names, under any name of the same directory, keeps place and name:
//! the image's own libraries win as they do without a GPU. Any other folder is added to the configuration, so that it is
//! still searched after the next ldconfig in the container, which installing any library runs.

use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;

use super::drop_in;
use crate::apply::journal::Journal;
use crate::apply::mount::target::Tree;
use crate::container::Layout;
use crate::error::{Error, ErrorKind};
use crate::inroot::{Image, identity_of};
use crate::ldcache::judge;
use crate::ldcache::search_path::SearchPath;
use crate::ldcache::triplet;
use crate::path::ContainerPath;

/// The folders of a hook; none if this is no hook.
#[derive(Debug, Default)]
pub(in crate::apply) struct Folders {
    /// Those that could not be configured: they belong on the command line of ldconfig.
    pub(super) first: Vec<ContainerPath>,
    /// Those that ldconfig searches anyway.
    pub(super) known: Vec<ContainerPath>,
    /// What ldconfig searches; None if that cannot be read.
    pub(in crate::apply) path: Option<SearchPath>,
    /// The directories of the cache before a program wrote it, with the given names; None if none did.
    pub(in crate::apply) former: Option<Vec<judge::Directory>>,
    /// True if the image's loader has Debian's default directories.
    pub(super) is_multiarch: bool,
}

impl Folders {
    /// Finds the place of each folder; adds those to the configuration that it lacks. `compat` are directories of
    /// compatibility libraries, which have their own file of the configuration.
    ///
    /// Adds to `warnings` why the configuration could not be changed.
    pub(in crate::apply) fn place(
        folders: &[ContainerPath],
        compat: &[ContainerPath],
        layout: &Layout,
        tree: &mut Tree<'_>,
        descriptors: &OwnedFd,
        journal: &mut Journal<'_>,
        warnings: &mut Vec<Error>,
    ) -> Self {
        let found = Self::find(folders, layout, tree, descriptors);
        let Some(path) = &found.path else {
            return found;
        };
        let mark = journal.mark();
        let directories = found.first.iter().map(ContainerPath::as_path);
        let mut lines = drop_in::Lines::new(directories, !compat.is_empty(), path);
        let image = tree.image(descriptors);
        if lines.would_include_too_much(image) {
            log::info!(
                "leaving the configuration alone: what ld.so.conf would include is too large"
            );
            lines = drop_in::Lines::default();
        }
        match lines.write(tree, descriptors, journal) {
            Ok(true) => Self::find(folders, layout, tree, descriptors),
            Ok(false) => found,
            Err(error) => {
                warnings.extend(journal.undo_to(mark));
                tree.forget();
                // A bind mount of ld.so.conf alone cannot be replaced.
                let is_forbidden = error.kind() == ErrorKind::Volume
                    || matches!(error.errno(), Some(Errno::EROFS | Errno::EBUSY));
                if is_forbidden {
                    log::info!("leaving the configuration alone: {}", error.message());
                } else {
                    warnings.push(error);
                }
                found
            }
        }
    }

    /// Returns folders of a loader without a configuration.
    pub(in crate::apply) fn unplaced(folders: &[ContainerPath]) -> Self {
        Self {
            first: folders.to_vec(),
            ..Self::default()
        }
    }

    fn find(
        folders: &[ContainerPath],
        layout: &Layout,
        tree: &Tree<'_>,
        descriptors: &OwnedFd,
    ) -> Self {
        let image = tree.image(descriptors);
        let mut found = Self {
            // The update of the cache reports a file at which ldconfig would block.
            path: SearchPath::of(image, layout).ok(),
            is_multiarch: layout.libs_dir.as_path().ends_with(triplet()),
            ..Self::default()
        };
        for folder in folders {
            match found.is_known(folder.as_path(), image) {
                Ok(true) => found.known.push(folder.clone()),
                Err(Errno::ENOENT | Errno::ENOTDIR) => log::debug!("{folder} does not exist"),
                // The search reports any other failure.
                Ok(false) | Err(_) => found.first.push(folder.clone()),
            }
        }
        found
    }

    fn is_known(&self, folder: &Path, image: Image<'_>) -> Result<bool, Errno> {
        let directory = image.root.resolve_directory(folder)?;
        let identity = identity_of(directory)?;
        let path = self.path.as_ref();
        Ok(path.is_some_and(|path| path.find(identity).is_some()))
    }
}
