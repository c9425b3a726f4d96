//! Updates the entries of a loader cache as ldconfig would after searching some directories again.
//!
//! Among libraries of one name, those that were put into the image come first, under the names of the directories that the
//! caller gave, and before them all libraries of some of its directories. Everything else keeps the place and the name that
//! the image's configuration gives it.

use std::collections::{HashMap, HashSet};

use super::contents::CacheLine;
use super::listing::{Directory, Listing};
use super::order;

/// A directory that is searched again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchedDirectory {
    /// Its name in the cache.
    pub(crate) path: Vec<u8>,
    /// Libraries found in it that the cache may lack.
    pub(crate) found: Vec<FoundLibrary>,
    /// Its position among the directories that ldconfig searches.
    pub(crate) rank: usize,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundLibrary {
    /// A slash and its SONAME, which is also the name of its link.
    pub(crate) rest: Vec<u8>,
    /// Kind and architecture.
    pub(crate) flags: i32,
}

impl FoundLibrary {
    /// Creates an entry for the library that a directory's link of this name leads to.
    pub(crate) fn new(soname: &[u8], flags: i32) -> Self {
        let rest = [b"/", soname].concat();
        Self { rest, flags }
    }

    /// The name that programs ask for.
    pub(crate) fn soname(&self) -> &[u8] {
        self.rest.get(1..).unwrap_or_default()
    }
}

/// What happens to a directory's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryAction {
    /// Kept: the directory has this position.
    Keep(usize),
    /// Removed: ldconfig would not search it.
    Drop,
    /// Replaced: it is the searched directory with this index.
    Search(usize),
    /// Kept at this position, under this name, but for what was found in the searched directory with this index.
    Share {
        searched: usize,
        position: usize,
        name: Vec<u8>,
    },
}

/// A directory of the cache and what happens to it.
#[derive(Clone, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) from: Directory<'a>,
    pub(crate) action: DirectoryAction,
    /// Its new name in the cache, if that changes.
    to: Vec<u8>,
}

/// Decides what happens to each directory; `action` is called for the directories that were passed to ldconfig.
pub(crate) fn routes<'a>(
    directories: &[Directory<'a>],
    searched: &[SearchedDirectory],
    action: impl Fn(&[u8]) -> DirectoryAction,
) -> Vec<Route<'a>> {
    let route = |&from: &Directory<'a>| {
        let action = action(from.base);
        let to = match action {
            DirectoryAction::Search(number) => searched.get(number).map(|searched| &searched.path),
            DirectoryAction::Share { ref name, .. } => Some(name),
            DirectoryAction::Keep(_) | DirectoryAction::Drop => None,
        };
        let below = from.path.get(from.base.len()..).unwrap_or_default();
        let to = to.map(|name| [name, below].concat()).unwrap_or_default();
        Route { from, action, to }
    };
    directories.iter().map(route).collect()
}

/// Forgets libraries that the cache does not list in their directory.
pub(crate) fn keep_listed(
    listing: &Listing<'_>,
    routes: &[Route<'_>],
    searched: &mut [SearchedDirectory],
) {
    let numbers = routes.iter().filter_map(|route| match &route.action {
        DirectoryAction::Search(number)
        | DirectoryAction::Share {
            searched: number, ..
        } => Some((route.from.path, *number)),
        DirectoryAction::Keep(_) | DirectoryAction::Drop => None,
    });
    let numbers: HashMap<&[u8], usize> = numbers.collect();
    let listed = listing.lines.iter().filter_map(|line| {
        let number = numbers.get(line.directory)?;
        Some((*number, line.key, line.flags))
    });
    let listed: HashSet<_> = listed.collect();
    for (number, directory) in searched.iter_mut().enumerate() {
        let found = &mut directory.found;
        found.retain(|found| listed.contains(&(number, found.soname(), found.flags)));
    }
}

/// An entry, and the rank of its directory among otherwise equal entries.
#[derive(Clone, Copy, Debug)]
struct RankedLine<'a> {
    line: CacheLine<'a>,
    rank: usize,
}

/// Merges the cache's entries with those of the searched directories.
pub(crate) fn update<'a>(
    listing: &Listing<'a>,
    routes: &'a [Route<'a>],
    searched: &'a [SearchedDirectory],
) -> Vec<CacheLine<'a>> {
    let mut old = rerouted(listing, routes, searched);
    // Entries can only have moved among equal ones.
    for equals in old.chunk_by_mut(|one, other| order::entries(&one.line, &other.line).is_eq()) {
        equals.sort_by_key(|ranked| ranked.rank);
    }
    let new = searched.iter().flat_map(|searched| {
        let found = searched.found.iter();
        found.map(move |found| added(searched, found))
    });
    let mut new: Vec<_> = new.collect();
    new.sort_by(compare);

    let mut lines = Vec::with_capacity(old.len() + new.len());
    let mut rest = old.as_slice();
    for added in &new {
        let (before, after) =
            rest.split_at(rest.partition_point(|one| compare(one, added).is_lt()));
        lines.extend(before.iter().map(|ranked| ranked.line));
        lines.push(added.line);
        rest = after;
    }
    lines.extend(rest.iter().map(|ranked| ranked.line));
    lines
}

fn compare(one: &RankedLine<'_>, other: &RankedLine<'_>) -> std::cmp::Ordering {
    order::entries(&one.line, &other.line).then_with(|| one.rank.cmp(&other.rank))
}

fn added<'a>(searched: &'a SearchedDirectory, found: &'a FoundLibrary) -> RankedLine<'a> {
    let rank = searched.rank;
    let line = CacheLine {
        flags: found.flags,
        kernel: 0,
        features: 0,
        key: found.soname(),
        directory: &searched.path,
        rest: &found.rest,
    };
    RankedLine { line, rank }
}

/// Returns the cache's own entries, without those removed or replaced, under the new names of their directories.
fn rerouted<'a>(
    listing: &Listing<'a>,
    routes: &'a [Route<'a>],
    searched: &'a [SearchedDirectory],
) -> Vec<RankedLine<'a>> {
    let names =
        |searched: &'a SearchedDirectory| searched.found.iter().map(FoundLibrary::soname).collect();
    let found: Vec<HashSet<&[u8]>> = searched.iter().map(names).collect();
    let is_found = |number: usize, key| found.get(number).is_some_and(|found| found.contains(key));
    let rank_of = |number: usize| searched.get(number).map_or(usize::MAX, |of| of.rank);
    // The image chooses how many entries there are, and in which order.
    let of_directory: HashMap<&[u8], &Route<'a>> = routes
        .iter()
        .map(|route| (route.from.path, route))
        .collect();
    let mut last = None::<&Route<'a>>;
    let ranked = listing.lines.iter().filter_map(|&line| {
        let is_of = |route: &&Route<'_>| route.from.path == line.directory;
        let route = last.filter(is_of);
        let route = route.or_else(|| of_directory.get(line.directory).copied())?;
        last = Some(route);
        match &route.action {
            DirectoryAction::Keep(rank) => Some(RankedLine { line, rank: *rank }),
            DirectoryAction::Drop => None,
            DirectoryAction::Search(number)
            | DirectoryAction::Share {
                searched: number, ..
            } if route.from.is_base() && is_found(*number, line.key) => None,
            DirectoryAction::Search(number) => Some(renamed(line, route, rank_of(*number))),
            DirectoryAction::Share { position, .. } => Some(renamed(line, route, *position)),
        }
    });
    ranked.collect()
}

/// Returns an entry under the new name of its directory.
fn renamed<'a>(line: CacheLine<'a>, route: &'a Route<'a>, rank: usize) -> RankedLine<'a> {
    let directory = &route.to;
    let line = CacheLine { directory, ..line };
    RankedLine { line, rank }
}
