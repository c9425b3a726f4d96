//! Looks up names in the places where drivers are installed, without reading directories of thousands of files.
//!
//! The places form groups, the [`Source`]s. A later one is used only for names that the earlier ones lack.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use log::{debug, warn};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use super::headers::Headers;
use crate::error::{Error, ErrorKind, Result, errno_text};
use crate::host::realpath::{Directory, RealPaths};
use crate::host::{Abi, DriverRoot};
use crate::ldcache::format::Cache;
use crate::path::HostPath;

/// The loader's cache, unless the caller names another.
const LDCACHE: &str = "/etc/ld.so.cache";

/// The directory that Windows provides under WSL2.
pub(super) const WSL: &str = "/usr/lib/wsl/lib";

/// Library directories in upstream's order, then those of other distributions: Arch, NixOS. `TRIPLET` is Debian's name of
/// the ABI.
const NATIVE: [&str; 11] = [
    "/",
    "/usr/lib64",
    "/usr/lib/TRIPLET",
    "/usr/lib/TRIPLET/nvidia/current",
    "/lib64",
    "/lib/TRIPLET",
    "/lib/TRIPLET/nvidia/current",
    "/usr/lib",
    "/lib",
    "/run/opengl-driver/lib",
    WSL,
];
const COMPAT32: [&str; 9] = [
    "/usr/lib/TRIPLET",
    "/usr/lib/TRIPLET/nvidia/current",
    "/usr/lib32",
    "/usr/lib",
    "/lib/TRIPLET",
    "/lib/TRIPLET/nvidia/current",
    "/lib32",
    "/lib",
    "/run/opengl-driver-32/lib",
];

/// Names of links that drivers usually have, which may lead to their directory.
const LINKS: [&str; 3] = ["libcuda.so.1", "libnvidia-ml.so.1", "libGLX_nvidia.so.0"];

/// A group of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The directories that the caller names.
    Named,
    /// The usual directories.
    Usual,
    /// The loader's cache.
    Cache,
    /// Directories to which the loader's cache or a link in a usual directory leads.
    Led,
}

/// A place with files of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) abi: Abi,
    /// The directory by which it was found.
    pub(super) listed: HostPath,
    /// The same with links resolved, of the file itself.
    pub(super) real: HostPath,
}

/// The places of a driver root, and what was read of them.
pub(super) struct Places<'r> {
    pub(super) root: &'r DriverRoot,
    pub(super) paths: RealPaths<'r>,
    named: Vec<HostPath>,
    /// The cache that the caller names.
    ldcache: Option<HostPath>,
    cache: Option<Vec<u8>>,
    /// The names in directories that were read, sorted.
    names: HashMap<HostPath, Vec<String>>,
    headers: HashMap<HostPath, Option<Rc<Headers>>>,
    /// Where libraries of the driver were found, best first.
    pub(super) homes: Vec<Home>,
    /// Directories to which entries for other versions lead.
    leads: Vec<(Abi, HostPath)>,
}

impl<'r> Places<'r> {
    /// Returns the places below a root; `named` are the caller's directories.
    pub(super) fn new(root: &'r DriverRoot, named: &[HostPath]) -> Self {
        Self {
            root,
            paths: RealPaths::new(root),
            named: named.to_vec(),
            ldcache: None,
            cache: None,
            names: HashMap::new(),
            headers: HashMap::new(),
            homes: Vec::new(),
            leads: Vec::new(),
        }
    }

    /// Uses a cache that the caller names before the usual directories.
    ///
    /// # Errors
    /// `open failed: <cache>: <cause>`, `unsupported file format: <cache>`.
    pub(super) fn use_cache(&mut self, path: &HostPath) -> Result<()> {
        self.cache = Some(read_cache(self.root, path)?);
        self.ldcache = Some(path.clone());
        Ok(())
    }

    /// Returns the sources in their order.
    pub(super) fn sources(&self) -> [Source; 4] {
        use Source::{Cache, Led, Named, Usual};
        match self.ldcache {
            Some(_) => [Named, Cache, Usual, Led],
            None => [Named, Usual, Cache, Led],
        }
    }

    /// Returns the directories of a source; none for the cache.
    fn listed(&mut self, source: Source, abi: Abi) -> Vec<HostPath> {
        match source {
            Source::Named => self.named.clone(),
            Source::Usual => usual(abi),
            Source::Cache => Vec::new(),
            Source::Led => self.led(abi),
        }
    }

    /// Returns the existing ones, each once.
    pub(super) fn directories(&mut self, source: Source, abi: Abi) -> Vec<Rc<Directory>> {
        let listed = self.listed(source, abi);
        let mut seen = HashSet::new();
        let opened = listed
            .iter()
            .filter_map(|path| self.paths.directory(path).ok());
        // With a merged /usr, several names lead to one directory.
        opened
            .filter(|directory| seen.insert(directory.real.clone()))
            .collect()
    }

    /// Returns the directories to which links lead.
    fn led(&mut self, abi: Abi) -> Vec<HostPath> {
        let usual = usual(abi);
        let links = usual
            .iter()
            .flat_map(|place| LINKS.map(|link| place.join(link)));
        let mut led: Vec<_> = self
            .homes
            .iter()
            .filter(|home| home.abi == abi)
            .map(|home| home.real.clone())
            .collect();
        led.extend(
            self.leads
                .iter()
                .filter(|(of, _)| *of == abi)
                .map(|(_, place)| place.clone()),
        );
        for link in links {
            let found = self.paths.resolve(&link);
            led.extend(found.ok().map(|(real, _)| real.parent()));
        }
        led.retain(|place| !usual.contains(place));
        led
    }

    /// Returns the cache's entries for libraries of an ABI whose names `pick` accepts, in its order.
    pub(super) fn cached<T>(
        &mut self,
        abi: Abi,
        pick: impl Fn(&[u8]) -> Option<T>,
    ) -> Vec<(T, HostPath)> {
        let root = self.root;
        let bytes = self.cache.get_or_insert_with(|| {
            read_cache(root, &HostPath::new(LDCACHE)).unwrap_or_else(|error| {
                debug!("{}", error.message());
                Vec::new()
            })
        });
        let entries = Cache::parse(bytes).into_iter().flat_map(Cache::entries);
        let entries = entries.filter(|entry| Abi::of_cache_entry(entry.flags) == Some(abi));
        let path = |bytes| HostPath::new(OsStr::from_bytes(bytes));
        entries
            .filter_map(|entry| Some((pick(entry.key)?, path(entry.value))))
            .collect()
    }

    /// Remembers where an entry of the cache leads, for names that it does not have.
    pub(super) fn lead(&mut self, abi: Abi, directory: HostPath) {
        let lead = (abi, directory);
        if !self.leads.contains(&lead) {
            self.leads.push(lead);
        }
    }

    /// Remembers where a library of the driver was found.
    pub(super) fn at_home(&mut self, abi: Abi, listed: HostPath, file: &HostPath) {
        let real = file.parent();
        let home = Home { abi, listed, real };
        if !self.homes.contains(&home) {
            self.homes.push(home);
        }
    }

    /// Returns the directories of the driver's libraries, links resolved.
    pub(super) fn real_homes(&self, abi: Abi) -> Vec<HostPath> {
        let of_abi = self.homes.iter().filter(|home| home.abi == abi);
        without_duplicates(of_abi.map(|home| home.real.clone()).collect())
    }

    /// Returns the real path of a library in one of the places, by its name.
    pub(super) fn locate(&mut self, name: &str, abi: Abi) -> Option<HostPath> {
        for source in self.sources() {
            let found = if source == Source::Cache {
                let cached = self.cached(abi, |key| (key == name.as_bytes()).then_some(()));
                cached
                    .last()
                    .map(|(_, path)| path.clone())
                    .into_iter()
                    .collect()
            } else {
                let directories = self.listed(source, abi);
                directories
                    .iter()
                    .map(|place| place.join(name))
                    .collect::<Vec<_>>()
            };
            if let Some(file) = found.iter().find_map(|path| self.library(path, abi)) {
                return Some(file);
            }
        }
        None
    }

    /// Returns a library's real path, unless it is of another ABI; a file that is no library counts as a native one.
    pub(super) fn library(&mut self, path: &HostPath, abi: Abi) -> Option<HostPath> {
        let real = self.file(path)?;
        let found = self.headers(&real).and_then(|headers| headers.abi);
        (found.unwrap_or(Abi::Native) == abi).then_some(real)
    }

    /// Returns the headers of a library; None if it is not one.
    pub(super) fn headers(&mut self, real: &HostPath) -> Option<Rc<Headers>> {
        if let Some(known) = self.headers.get(real) {
            return known.clone();
        }
        let read = match Headers::read(self.root, real) {
            Ok(headers) => Some(Rc::new(headers)),
            Err(error) => {
                debug!("{real}: {error}");
                None
            }
        };
        self.headers.insert(real.clone(), read.clone());
        read
    }

    /// Returns a regular file's real path, if it exists.
    pub(super) fn file(&mut self, path: &HostPath) -> Option<HostPath> {
        let found = self.paths.resolve(path);
        self.regular(found, || path.clone())
    }

    /// Returns the real path of a regular file in a directory, if it exists.
    pub(super) fn file_in(&self, directory: &Directory, name: &OsStr) -> Option<HostPath> {
        let found = self.paths.look_up(directory, name);
        self.regular(found, || directory.listed.join(name))
    }

    /// Returns a path that was looked up, if it is a regular file's; `path` is that before links were resolved.
    fn regular(
        &self,
        found: Result<(HostPath, SFlag), Errno>,
        path: impl Fn() -> HostPath,
    ) -> Option<HostPath> {
        match found {
            Ok((real, SFlag::S_IFREG)) => Some(real),
            Ok((real, _)) => {
                let path = self.root.join(&real);
                warn!("skipping {}: it is not a regular file", path.display());
                None
            }
            Err(
                Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP | Errno::ENAMETOOLONG,
            ) => None,
            Err(errno) => {
                let path = self.root.join(&path());
                warn!("skipping {}: {}", path.display(), errno_text(errno));
                None
            }
        }
    }

    /// Returns the target of a dangling link, which still says what is missing.
    pub(super) fn link_text(&mut self, path: &HostPath) -> Option<HostPath> {
        let directory = self.paths.directory(&path.parent()).ok()?;
        let text = nix::fcntl::readlinkat(&directory.fd, path.file_name()).ok()?;
        Some(path.parent().join(text))
    }

    /// Returns the directories beside those of the driver's libraries, such as `share` and `bin`, best first.
    pub(super) fn beside(&self, name: &str) -> Vec<HostPath> {
        let homes = self
            .homes
            .iter()
            .flat_map(|home| [&home.listed, &home.real]);
        let trees = homes.flat_map(|home| {
            let tree = home.parent();
            // Debian's libraries are one level below.
            let above = (tree.file_name() == "lib").then(|| tree.parent());
            [Some(tree), above].into_iter().flatten()
        });
        without_duplicates(trees.map(|tree| tree.join(name)).collect())
    }

    /// Returns the sorted names in a directory; empty if it cannot be read. Omits names that a specification cannot
    /// contain.
    pub(super) fn names(&mut self, directory: &HostPath) -> &[String] {
        let root = self.root;
        let entry = self.names.entry(directory.clone());
        entry.or_insert_with_key(|directory| {
            list(root, directory).unwrap_or_else(|errno| {
                match errno {
                    Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => {
                        debug!("skipping {directory}: {errno}");
                    }
                    _ => warn!("skipping {directory}: {}", errno_text(errno)),
                }
                Vec::new()
            })
        })
    }

    /// Returns the files of a directory with matching names: links resolved, without duplicates, sorted by name.
    pub(super) fn files(
        &mut self,
        directory: &HostPath,
        fits: impl Fn(&str) -> bool,
    ) -> Vec<HostPath> {
        let names = self.names(directory).iter().filter(|name| fits(name));
        let wanted: Vec<String> = names.cloned().collect();
        let Ok(opened) = self.paths.directory(directory) else {
            return Vec::new();
        };
        let names = wanted.iter().map(OsStr::new);
        let found = names.filter_map(|name| self.file_in(&opened, name));
        without_duplicates(found.collect())
    }

    /// Returns true if a directory has a symlink of this name.
    pub(super) fn has_link(&mut self, directory: &HostPath, name: &str) -> bool {
        let found = self.paths.directory(directory);
        found.is_ok_and(|directory| nix::fcntl::readlinkat(&directory.fd, name).is_ok())
    }
}

/// Returns the usual directories of an ABI.
pub(in crate::host) fn usual(abi: Abi) -> Vec<HostPath> {
    let all = match abi {
        Abi::Native => NATIVE.as_slice(),
        Abi::Compat32 => COMPAT32.as_slice(),
    };
    let path = |text: &str| match (text.split_once("TRIPLET"), abi.triplet()) {
        (None, _) => Some(HostPath::new(text)),
        (Some((before, after)), Some(triplet)) => {
            Some(HostPath::new(format!("{before}{triplet}{after}")))
        }
        (Some(_), None) => None,
    };
    all.iter().filter_map(|text| path(text)).collect()
}

/// Keeps the first of equal paths.
pub(super) fn without_duplicates(mut paths: Vec<HostPath>) -> Vec<HostPath> {
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    paths
}

/// Reads a loader cache.
///
/// # Errors
/// `open failed: <cache>: <cause>`, `unsupported file format: <cache>`.
pub(in crate::host) fn read_cache(root: &DriverRoot, path: &HostPath) -> Result<Vec<u8>> {
    let failed = |errno| Error::file("open failed", root.join(path), errno);
    let bytes = root.read(path).map_err(failed)?;
    if Cache::parse(&bytes).is_some() {
        return Ok(bytes);
    }
    let error = Error::new(ErrorKind::Malformed, "unsupported file format");
    Err(error.of(root.join(path).display()))
}

fn list(root: &DriverRoot, directory: &HostPath) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::from_fd(OwnedFd::from(root.open_file(directory)?))?.iter() {
        names.extend(entry?.file_name().to_str().ok().map(String::from));
    }
    names.sort();
    Ok(names)
}
