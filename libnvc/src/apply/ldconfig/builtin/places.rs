//! Determines the rank of each directory among those with libraries of the same name, and its name in the cache.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Directory;
use crate::apply::ldconfig::folders::Folders;
use crate::container::Layout;
use crate::inroot::{Identity, Image, identity, identity_of};
use crate::ldcache::judge;
use crate::ldcache::listing::Listing;
use crate::ldcache::merge::{DirectoryAction, Route, SearchedDirectory};
use crate::ldcache::search_path::SearchPath;
use crate::path::ContainerPath;

/// What is known about the directories.
pub(super) struct Places<'a> {
    pub(super) image: Image<'a>,
    /// Those of the cache.
    pub(super) cache: &'a [judge::Directory],
    pub(super) layout: &'a Layout,
    /// What the image's ldconfig searches, if that was read, and what a program has changed.
    pub(super) folders: &'a Folders,
    /// Number of given directories all of whose libraries come first.
    pub(super) first: usize,
    /// Number of all given directories.
    pub(super) given: usize,
}

impl Places<'_> {
    /// Returns the rank and the name of what a searched directory has besides the libraries that were put there.
    pub(super) fn of_others(&self, directory: &Directory<'_>) -> (usize, Vec<u8>) {
        let name = directory.path.as_path().as_os_str().as_bytes();
        match self.position(identity(&directory.stat)) {
            Some((rank, name)) => (rank, name.to_vec()),
            None => (usize::MAX, name.to_vec()),
        }
    }

    /// Decides what happens to the entries of a directory that the cache lists.
    pub(super) fn action(&self, directories: &[Directory<'_>], base: &[u8]) -> DirectoryAction {
        let known = self.cache.iter().find(|known| known.path == base);
        let found = known.map(|known| known.identity).or_else(|| {
            let path = Path::new(OsStr::from_bytes(base));
            let fd = self.image.root.resolve_directory(path).ok()?;
            identity_of(fd).ok()
        });
        let position = found.and_then(|found| self.position(found));
        let rank = position.map_or(usize::MAX, |(rank, _)| rank);
        let same = |directory: &Directory<'_>| Some(identity(&directory.stat)) == found;
        let number = directories.iter().position(same);
        let is_first = |number: &usize| {
            let directory = directories.get(*number);
            directory.is_some_and(|directory| directory.rank < self.first)
        };
        match (number, known) {
            (Some(number), _) if is_first(&number) => DirectoryAction::Search(number),
            (Some(searched), _) => DirectoryAction::Share {
                searched,
                position: rank,
                name: {
                    let mut former = self.folders.former.iter().flatten();
                    let former = former.find(|former| Some(former.identity) == found);
                    former.map_or_else(|| base.to_vec(), |former| former.path.clone())
                },
            },
            (None, Some(known)) if !known.is_configured => {
                // Like ldconfig: the directory came from the previous run's command line.
                log::info!(
                    "leaving out {}, which no configuration names",
                    known.name().display()
                );
                DirectoryAction::Drop
            }
            (None, _) => DirectoryAction::Keep(rank),
        }
    }

    /// Returns a file of another directory that ldconfig, when it runs in the container, will put before one of ours.
    pub(super) fn earlier(
        &self,
        directories: &[Directory<'_>],
        searched: &[SearchedDirectory],
        listing: &Listing<'_>,
        routes: &[Route<'_>],
    ) -> Option<ContainerPath> {
        let mut ours = HashMap::new();
        for (directory, searched) in directories.iter().zip(searched) {
            let found = searched
                .found
                .iter()
                .filter(|_| directory.rank >= self.first);
            let found =
                found.map(|found| ((found.soname(), found.flags), identity(&directory.stat)));
            ours.extend(found);
        }
        let is_kept = |name: &[u8]| {
            let mut kept = routes.iter().filter(|route| route.from.path == name);
            kept.any(|route| matches!(route.action, DirectoryAction::Keep(_)))
        };
        let mut read = None;
        let lines = listing.lines.iter().filter(|line| line.features == 0);
        for line in lines {
            let Some(ours) = ours.get(&(line.key, line.flags)) else {
                continue;
            };
            let directory = Path::new(OsStr::from_bytes(line.directory));
            if !is_kept(line.directory) {
                continue;
            }
            let found = self.image.root.resolve_directory(directory);
            let Ok(other) = found.and_then(identity_of) else {
                continue;
            };
            let known = self.folders.path.as_ref();
            let path = known.or_else(|| {
                let path = read.get_or_insert_with(|| SearchPath::of(self.image, self.layout).ok());
                path.as_ref()
            })?;
            let position = |of| path.find(of).map_or(usize::MAX, |(position, _)| position);
            if position(other) < position(*ours) {
                let file = [line.directory, line.rest].concat();
                return Some(ContainerPath::new(OsStr::from_bytes(&file)));
            }
        }
        None
    }

    /// Returns the rank of a directory that ldconfig searches anyway, and its name.
    fn position(&self, directory: Identity) -> Option<(usize, &[u8])> {
        let (position, path) = self.folders.path.as_ref()?.find(directory)?;
        Some((self.given + position, path.as_os_str().as_bytes()))
    }
}
