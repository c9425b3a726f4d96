//! Alters what a loader cache lists as ldconfig would, had it searched some directories anew.
//!
//! Those directories come first among libraries of one name, in their order, and are called as ldconfig's command line
//! calls them. All others keep their order, as ld.so.conf has not changed.

use std::collections::HashSet;

use super::listing::{Directory, Listing};
use super::order;
use super::write::Line;

/// A directory of ldconfig's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Searched {
    /// How the cache is to call it.
    pub(crate) path: Vec<u8>,
    /// What was found in it that the cache may not have.
    pub(crate) found: Vec<Found>,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// A slash and its SONAME, which is the name of its link as well.
    pub(crate) rest: Vec<u8>,
    /// Kind and architecture.
    pub(crate) flags: i32,
}

impl Found {
    /// A library that a directory's link of this name leads to.
    pub(crate) fn new(soname: &[u8], flags: i32) -> Self {
        let rest = [b"/", soname].concat();
        Self { rest, flags }
    }

    /// The name that programs ask for.
    pub(crate) fn soname(&self) -> &[u8] {
        self.rest.get(1..).unwrap_or_default()
    }
}

/// What becomes of a directory's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Keep,
    /// ldconfig would not look into it.
    Drop,
    /// It is the one with this number of those that are searched.
    Search(usize),
}

/// A directory of the cache and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct Route<'a> {
    from: Directory<'a>,
    fate: Fate,
    /// What the cache is to call it, if that changes.
    to: Vec<u8>,
}

/// Decides for each directory what becomes of it; `fate` is asked for the directories that ldconfig was told of.
pub(crate) fn routes<'a>(
    directories: &[Directory<'a>],
    searched: &[Searched],
    fate: impl Fn(&[u8]) -> Fate,
) -> Vec<Route<'a>> {
    let route = |&from: &Directory<'a>| {
        let fate = fate(from.base);
        let to = match fate {
            Fate::Search(number) => searched.get(number).map(|searched| {
                let below = from.path.get(from.base.len()..).unwrap_or_default();
                [&searched.path, below].concat()
            }),
            Fate::Keep | Fate::Drop => None,
        };
        Route {
            from,
            fate,
            to: to.unwrap_or_default(),
        }
    };
    directories.iter().map(route).collect()
}

/// An entry, and where its directory stands among those of entries that are otherwise equal.
#[derive(Clone, Copy, Debug)]
struct Ranked<'a> {
    line: Line<'a>,
    rank: usize,
}

/// The cache's entries with those of the directories that were searched.
pub(crate) fn update<'a>(
    listing: &Listing<'a>,
    routes: &'a [Route<'a>],
    searched: &'a [Searched],
) -> Vec<Line<'a>> {
    let mut old = rerouted(listing, routes, searched);
    // What has changed places can only have done so among its equals.
    for equals in old.chunk_by_mut(|one, other| order::entries(&one.line, &other.line).is_eq()) {
        equals.sort_by_key(|ranked| ranked.rank);
    }
    let mut new: Vec<_> = searched
        .iter()
        .enumerate()
        .flat_map(|(rank, searched)| {
            searched
                .found
                .iter()
                .map(move |found| added(searched, found, rank))
        })
        .collect();
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

fn compare(one: &Ranked<'_>, other: &Ranked<'_>) -> std::cmp::Ordering {
    order::entries(&one.line, &other.line).then_with(|| one.rank.cmp(&other.rank))
}

fn added<'a>(searched: &'a Searched, found: &'a Found, rank: usize) -> Ranked<'a> {
    let line = Line {
        flags: found.flags,
        kernel: 0,
        features: 0,
        key: found.soname(),
        directory: &searched.path,
        rest: &found.rest,
    };
    Ranked { line, rank }
}

/// The cache's own entries: without those that go or are found anew, with new names of directories.
fn rerouted<'a>(
    listing: &Listing<'a>,
    routes: &'a [Route<'a>],
    searched: &'a [Searched],
) -> Vec<Ranked<'a>> {
    let names = |searched: &'a Searched| searched.found.iter().map(Found::soname).collect();
    let found: Vec<HashSet<&[u8]>> = searched.iter().map(names).collect();
    let is_found = |rank: usize, key| found.get(rank).is_some_and(|found| found.contains(key));
    let mut last = None::<&Route<'a>>;
    let ranked = listing.lines.iter().filter_map(|&line| {
        let is_of = |route: &&Route<'_>| route.from.path == line.directory;
        let route = last.filter(is_of).or_else(|| routes.iter().find(is_of))?;
        last = Some(route);
        match route.fate {
            Fate::Keep => Some(Ranked {
                line,
                rank: usize::MAX,
            }),
            Fate::Drop => None,
            Fate::Search(rank) if route.from.is_base() && is_found(rank, line.key) => None,
            Fate::Search(rank) => {
                let directory = &route.to;
                Some(Ranked {
                    line: Line { directory, ..line },
                    rank,
                })
            }
        }
    });
    ranked.collect()
}
