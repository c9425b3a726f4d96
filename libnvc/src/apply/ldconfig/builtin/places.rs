//! Determines the rank of each directory among those with libraries of the same name, and its name in the cache.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Directory;
use crate::apply::ldconfig::folders::Folders;
use crate::inroot::{self, Identity, Image, identity};
use crate::ldcache::judge;
use crate::ldcache::merge::DirectoryAction;

/// What is known about the directories.
pub(super) struct Places<'a> {
    pub(super) image: Image<'a>,
    /// Those of the cache.
    pub(super) cache: &'a [judge::Directory],
    /// Those of a hook.
    pub(super) folders: &'a Folders,
    /// Number of directories of the command line; their positions come before all others.
    pub(super) first: usize,
}

impl Places<'_> {
    /// Returns the rank and the name of a searched directory. Only those of the command line get the name that the
    /// command line uses.
    pub(super) fn of(&self, directory: &Directory<'_>) -> (usize, Vec<u8>) {
        let name = directory.path.as_path().as_os_str().as_bytes().to_vec();
        if directory.rank < self.first {
            return (directory.rank, name);
        }
        let identity = identity(&directory.stat);
        let cached = self.cache.iter().find(|known| known.identity == identity);
        let Some((rank, path)) = self.position(identity) else {
            return (usize::MAX, name);
        };
        let name = cached.map_or_else(|| path.to_owned(), |known| known.path.clone());
        (rank, name)
    }

    /// Decides what happens to the entries of a directory that the cache lists.
    pub(super) fn action(&self, directories: &[Directory<'_>], base: &[u8]) -> DirectoryAction {
        let known = self.cache.iter().find(|known| known.path == base);
        let found = known.map(|known| known.identity).or_else(|| {
            let path = Path::new(OsStr::from_bytes(base));
            let fd = self.image.root.resolve_directory(path).ok()?;
            inroot::stat(fd.as_fd()).ok().map(|stat| identity(&stat))
        });
        let same = |directory: &Directory<'_>| Some(identity(&directory.stat)) == found;
        match (directories.iter().position(same), known) {
            (Some(number), _) => DirectoryAction::Search(number),
            (None, Some(known)) if !known.is_configured => {
                // Like ldconfig: the directory came from the previous run's command line.
                log::info!(
                    "leaving out {}, which no configuration names",
                    known.name().display()
                );
                DirectoryAction::Drop
            }
            (None, _) => {
                let position = found.and_then(|found| self.position(found));
                DirectoryAction::Keep(position.map_or(usize::MAX, |(rank, _)| rank))
            }
        }
    }

    /// Returns the rank of a directory that ldconfig searches anyway, and its name.
    fn position(&self, directory: Identity) -> Option<(usize, &[u8])> {
        let (position, path) = self.folders.path.as_ref()?.find(directory)?;
        Some((self.first + position, path.as_os_str().as_bytes()))
    }
}
