//! Looks up files in the driver root, reading each directory once.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use log::{debug, warn};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::error::errno_text;
use crate::host::realpath::RealPaths;
use crate::host::{Abi, DEFAULT_LDCACHE, DriverRoot};
use crate::ldcache::listing::Listing;
use crate::path::HostPath;

/// Library directories of drivers, in upstream's order.
const USUAL: [&str; 11] = [
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
];

/// Library directories of distributions whose loader cache does not exist.
const UNUSUAL: [&str; 2] = ["/usr/lib", "/run/opengl-driver/lib"];

/// State of a search in the driver root.
pub(super) struct Search<'r> {
    pub(super) root: &'r DriverRoot,
    paths: RealPaths<'r>,
    /// The names in a directory, sorted.
    names: HashMap<HostPath, Vec<String>>,
    /// Library directories; the first group with a library of a name is used.
    groups: Vec<Vec<HostPath>>,
    /// True if the groups are the usual directories, to which the loader's cache may add more.
    can_grow: bool,
}

impl<'r> Search<'r> {
    /// Creates a search; `libraries` overrides the usual library directories.
    pub(super) fn new(root: &'r DriverRoot, libraries: &[HostPath]) -> Self {
        let usual = || USUAL.iter().map(HostPath::new).collect();
        Self {
            root,
            paths: RealPaths::new(root),
            names: HashMap::new(),
            groups: vec![match libraries {
                [] => usual(),
                given => given.to_vec(),
            }],
            can_grow: libraries.is_empty(),
        }
    }

    /// Returns the libraries with matching names: those of the usual directories, or else those of the loader's cache.
    pub(super) fn locate(&mut self, fits: impl Fn(&str) -> bool) -> Vec<HostPath> {
        let mut at = 0;
        loop {
            let Some(group) = self.groups.get(at).cloned() else {
                if !self.can_grow {
                    return Vec::new();
                }
                self.grow();
                continue;
            };
            let found = group
                .iter()
                .flat_map(|directory| self.files(directory, &fits));
            let found = without_duplicates(found.collect());
            if !found.is_empty() {
                return found;
            }
            at += 1;
        }
    }

    /// Adds the directories that are searched only if necessary.
    fn grow(&mut self) {
        let cache = self.root.read(&HostPath::new(DEFAULT_LDCACHE));
        let cached = cached_directories(&cache.unwrap_or_default());
        self.groups
            .push(cached.into_iter().map(HostPath::new).collect());
        self.groups
            .push(UNUSUAL.iter().map(HostPath::new).collect());
        self.can_grow = false;
    }

    /// Returns the files of a directory with matching names: links resolved, without duplicates, sorted by name.
    pub(super) fn files(
        &mut self,
        directory: &HostPath,
        fits: impl Fn(&str) -> bool,
    ) -> Vec<HostPath> {
        let names = self.names(directory).iter().filter(|name| fits(name));
        let wanted: Vec<HostPath> = names.map(|name| directory.join(name)).collect();
        let found = wanted.iter().filter_map(|path| self.file(path));
        without_duplicates(found.collect())
    }

    /// Returns the sorted names in a directory; empty if it cannot be read. Omits names that a specification cannot
    /// contain.
    pub(super) fn names(&mut self, directory: &HostPath) -> &[String] {
        let (root, paths) = (self.root, &mut self.paths);
        self.names
            .entry(directory.clone())
            .or_insert_with_key(|directory| {
                let found = paths.directory(directory.clone());
                let real = match found {
                    Ok((_, real)) => real.clone(),
                    Err(errno) => {
                        debug!("skipping {directory}: {errno}");
                        return Vec::new();
                    }
                };
                list(root, &real).unwrap_or_else(|errno| {
                    debug!("skipping {directory}: {errno}");
                    Vec::new()
                })
            })
    }

    /// Returns a directory's real path, if it exists.
    pub(super) fn real_directory(&mut self, directory: &HostPath) -> Option<HostPath> {
        let found = self.paths.directory(directory.clone());
        found.ok().map(|(_, real)| real.clone())
    }

    /// Returns a regular file's real path, if it exists.
    pub(super) fn file(&mut self, path: &HostPath) -> Option<HostPath> {
        self.of_kind(path, |kind| kind == SFlag::S_IFREG)
    }

    /// Returns the real path of a file of some type, if it exists.
    pub(super) fn of_kind(
        &mut self,
        path: &HostPath,
        fits: impl Fn(SFlag) -> bool,
    ) -> Option<HostPath> {
        match self.paths.resolve_with_kind(path) {
            Ok((real, kind)) if fits(kind) => {
                debug!("selecting {real}");
                Some(real)
            }
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(errno) => {
                let path = self.root.join(path);
                warn!("skipping {}: {}", path.display(), errno_text(errno));
                None
            }
        }
    }

    /// Returns true if a directory has a symlink of this name.
    pub(super) fn has_link(&mut self, directory: &HostPath, name: &str) -> bool {
        let found = self.paths.directory(directory.clone());
        found.is_ok_and(|(fd, _)| nix::fcntl::readlinkat(fd, name).is_ok())
    }
}

/// Keeps the first of equal paths.
pub(super) fn without_duplicates(mut paths: Vec<HostPath>) -> Vec<HostPath> {
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    paths
}

fn list(root: &DriverRoot, directory: &HostPath) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::from_fd(OwnedFd::from(root.open_file(directory)?))?.iter() {
        names.extend(entry?.file_name().to_str().ok().map(String::from));
    }
    names.sort();
    Ok(names)
}

/// Returns the directories in which a loader cache has libraries of this machine's width, in cache order; none for
/// bytes of another format.
fn cached_directories(cache: &[u8]) -> Vec<PathBuf> {
    let Ok(mut listing) = Listing::parse(cache) else {
        return Vec::new();
    };
    let is_native = |flags| Abi::of_cache_entry(flags) == Some(Abi::Native);
    listing.lines.retain(|line| is_native(line.flags));
    let directories = listing.directories().unwrap_or_default();
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    directories
        .iter()
        .map(|directory| path(directory.path))
        .collect()
}
