//! Examines the image's dynamic loader: how it finds libraries, and whether its cache can be updated in place.
//!
//! A cache can be updated in place if it lists everything that ldconfig would find: it is valid, newer than ld.so.conf
//! and the directories it lists, and those contain exactly the listed libraries. This is checked before anything is
//! mounted, because mounting changes directories. The libraries themselves, often thousands, are not opened.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode};

use crate::directory;
use crate::error::errno_of;
use crate::inroot::{self, Identity, Image, RootDir, identity, open_to_list};
use crate::ldcache::configured::{Configuration, KERNEL, LEASE, Time};
use crate::ldcache::contents::CacheLine;
use crate::ldcache::listing::Listing;
use crate::ldcache::{FOR_FEATURES, FOR_FEATURES_BEFORE, built_in, library, musl};
use crate::path::ContainerPath;

mod contents;
mod unusable;

use contents::CachedNames;
pub(crate) use unusable::Unusable;
use unusable::unreadable;

/// Size limit; real caches are far smaller.
const MAX_SIZE: u64 = 16 << 20;
/// Limit of libraries in a directory that the cache does not list; each of them will be opened.
const MAX_LIBRARIES: usize = 512;
/// Limit of names in one directory.
const MAX_NAMES: usize = 1 << 16;
/// Time limit for all of them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How the image finds libraries.
#[derive(Debug)]
pub(crate) enum Loader {
    /// By glibc's cache.
    Glibc(SoundCache),
    /// By musl's list of directories; there is no cache.
    Musl,
    /// By default directories alone: the image has no /etc, like images built from scratch.
    Plain,
}

impl Loader {
    /// Returns the directories that its cache lists.
    pub(crate) fn directories(&self) -> &[Directory] {
        match self {
            Self::Glibc(cache) => &cache.directories,
            Self::Musl | Self::Plain => &[],
        }
    }
}

/// A cache that is up to date.
#[derive(Debug)]
pub(crate) struct SoundCache {
    pub(crate) bytes: Vec<u8>,
    /// Version of the file it was read from.
    pub(crate) file: Version,
    /// The directories it lists, without their subdirectories for some CPUs.
    pub(crate) directories: Vec<Directory>,
}

/// A version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    identity: Identity,
    size: i64,
    pub(crate) modified: Time,
}

impl Version {
    pub(crate) fn of(stat: &FileStat) -> Self {
        Self {
            identity: identity(stat),
            size: stat.st_size,
            modified: Time::modified(stat),
        }
    }
}

/// A directory that the cache lists.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The name in the cache.
    pub(crate) path: Vec<u8>,
    pub(crate) identity: Identity,
    /// True if ldconfig searches it without an argument.
    pub(crate) is_configured: bool,
}

/// Examines the image below `root`, into whose `directories` files will be mounted. `after_mounts`: an engine has done
/// that already, so mounted libraries are not the image's.
///
/// # Errors
/// The reason why ldconfig must rebuild the cache.
pub(crate) fn look(
    root: &RootDir,
    directories: &[ContainerPath],
    after_mounts: bool,
) -> Result<Loader, Unusable> {
    let descriptors = inroot::own_descriptors()
        .map_err(|errno| unreadable(Path::new(inroot::OWN_DESCRIPTORS), errno))?;
    let image = Image {
        root,
        descriptors: descriptors.as_fd(),
    };
    let etc = match root.resolve_directory(Path::new("/etc")) {
        Err(Errno::ENOENT) => return Ok(Loader::Plain),
        etc => etc.map_err(|errno| unreadable(Path::new("/etc"), errno))?,
    };
    let (bytes, file) = match find_cache(image, &etc) {
        Ok(read) => read,
        Err(Errno::ENOENT) if root.exists(Path::new(musl::NATIVE.path)) == Ok(true) => {
            return Ok(Loader::Musl);
        }
        Err(Errno::EFBIG) => return Err(Unusable::Cache("it is too large")),
        Err(Errno::EINVAL) => return Err(Unusable::Cache("it is not a regular file")),
        Err(Errno::EOPNOTSUPP) => return Err(Unusable::Cache(KERNEL)),
        Err(Errno::EAGAIN) => return Err(Unusable::Cache(LEASE)),
        Err(errno) => return Err(unreadable(Path::new("/etc/ld.so.cache"), errno)),
    };
    let listing = Listing::parse(&bytes).map_err(Unusable::Cache)?;
    let mut survey = Survey {
        image,
        written: file.modified,
        after_mounts,
        known: HashSet::new(),
        until: Instant::now() + TIMEOUT,
    };
    let configured = survey.configuration()?;
    let mut listed = survey.listed(&listing)?;
    survey.unlisted(&configured)?;
    for directory in directories {
        survey.searched(directory)?;
    }
    let mut found = survey.built_in()?;
    found.extend(configured.into_iter().map(|(_, identity)| identity));
    for directory in &mut listed {
        directory.is_configured = found.contains(&directory.identity);
    }
    Ok(Loader::Glibc(SoundCache {
        bytes,
        file,
        directories: listed,
    }))
}

/// Reads the cache that a program has just written. Returns [`Loader::Plain`] if there is none that can be written again.
pub(crate) fn written(image: Image<'_>) -> Loader {
    let etc = image.root.resolve_directory(Path::new("/etc"));
    let Ok((bytes, file)) = etc.and_then(|etc| find_cache(image, &etc)) else {
        return Loader::Plain;
    };
    let listed = Listing::parse(&bytes).and_then(|listing| {
        let directories = listing.directories()?;
        let listed = directories.iter().filter_map(|directory| {
            let path = Path::new(OsStr::from_bytes(directory.base));
            let found = image.root.resolve_directory(path).ok()?;
            Some(Directory {
                path: directory.base.to_vec(),
                identity: inroot::identity_of(found).ok()?,
                is_configured: true,
            })
        });
        Ok(listed.collect())
    });
    match listed {
        Ok(directories) => Loader::Glibc(SoundCache {
            bytes,
            file,
            directories,
        }),
        Err(why) => {
            log::info!("the ld.so.cache cannot be put into order: {why}");
            Loader::Plain
        }
    }
}

/// Reads the cache and its file version: `EINVAL` if it is not a regular file, `EFBIG` if it is too large.
fn find_cache(image: Image<'_>, etc: &OwnedFd) -> Result<(Vec<u8>, Version), Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let found = openat(etc, "ld.so.cache", flags, Mode::empty())?;
    let (file, stat) = image.open_file(found.as_fd())?;
    read_cache(&file, &stat)
}

/// Reads a cache: `EFBIG` if it is too large.
pub(crate) fn read_cache(file: &File, stat: &FileStat) -> Result<(Vec<u8>, Version), Errno> {
    let size = u64::try_from(stat.st_size).map_err(|_| Errno::EFBIG)?;
    if size > MAX_SIZE {
        return Err(Errno::EFBIG);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default() + 1);
    let length = file.take(MAX_SIZE + 1).read_to_end(&mut bytes);
    if length.map_err(|e| errno_of(&e))? as u64 > MAX_SIZE {
        return Err(Errno::EFBIG);
    }
    Ok((bytes, Version::of(stat)))
}

/// Checks whether a cache written at a certain time can be out of date.
struct Survey<'a> {
    image: Image<'a>,
    written: Time,
    after_mounts: bool,
    /// Directories that were already checked.
    known: HashSet<Identity>,
    until: Instant,
}

type OpenDirectory<'a> = (&'a Path, OwnedFd, FileStat);

impl Survey<'_> {
    /// Returns the existing directories of ld.so.conf without duplicates.
    fn configuration(&self) -> Result<Vec<(PathBuf, Identity)>, Unusable> {
        let configuration = Configuration::read(self.image).map_err(Unusable::Configuration)?;
        if configuration.too_large {
            return Err(Unusable::LargeConfiguration);
        }
        if configuration
            .times
            .iter()
            .any(|time| time.is_after(self.written))
        {
            return Err(Unusable::OlderThanConfiguration);
        }
        let mut found: Vec<(PathBuf, Identity)> = Vec::new();
        for path in configuration.directories {
            if let Some((_, _, stat)) = self.find(&path)? {
                let identity = identity(&stat);
                if !found.iter().any(|(_, known)| *known == identity) {
                    found.push((path, identity));
                }
            }
        }
        Ok(found)
    }

    /// Returns the directories that ldconfig searches by default; they depend on the distribution.
    fn built_in(&self) -> Result<HashSet<Identity>, Unusable> {
        let mut found = HashSet::new();
        for path in built_in() {
            found.extend(self.find(&path)?.map(|(_, _, stat)| identity(&stat)));
        }
        Ok(found)
    }

    /// Returns the directories that the cache lists; fails if one has changed since, or lacks a listed library.
    fn listed(&mut self, listing: &Listing<'_>) -> Result<Vec<Directory>, Unusable> {
        let directories = listing.directories();
        let directories = directories.map_err(Unusable::Cache)?;
        let mut listed: Vec<Directory> = Vec::new();
        // One directory can have several names.
        let mut contents: HashMap<Identity, (OpenDirectory<'_>, CachedNames<'_>)> = HashMap::new();
        let lines = by_directory(listing);
        for directory in directories {
            let path = Path::new(OsStr::from_bytes(directory.path));
            let Some(found) = self.find(path)? else {
                return Err(Unusable::MissingDirectory(path.to_owned()));
            };
            self.unchanged(&found)?;
            let entry = contents.entry(identity(&found.2));
            let (_, of_it) = entry.or_insert_with(|| (found, CachedNames::default()));
            for line in lines.get(directory.path).into_iter().flatten() {
                // Without the slash.
                of_it.names.insert(line.rest.get(1..).unwrap_or_default());
                of_it.sonames.insert(line.key);
            }
            if listed.iter().any(|known| known.path == directory.base) {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(directory.base));
            let Some(found) = self.find(path)? else {
                return Err(Unusable::MissingDirectory(path.to_owned()));
            };
            let identity = identity(&found.2);
            if self.known.insert(identity) {
                self.unchanged(&found)?;
                self.unchanged_below(&found)?;
            }
            listed.push(Directory {
                path: directory.base.to_vec(),
                identity,
                is_configured: false,
            });
        }
        for ((path, fd, _), listed) in contents.values() {
            contents::check(self.image, path, fd, listed, self.after_mounts)?;
        }
        Ok(listed)
    }

    /// Checks that directories of ld.so.conf that the cache does not list contain no libraries.
    fn unlisted(&mut self, configured: &[(PathBuf, Identity)]) -> Result<(), Unusable> {
        for (path, identity) in configured {
            if !self.known.insert(*identity) {
                continue;
            }
            let Some(found) = self.find(path)? else {
                continue;
            };
            if self.libraries(&found)? > 0 {
                return Err(Unusable::UnlistedDirectory(path.clone()));
            }
        }
        Ok(())
    }

    /// Checks a directory that will be searched; if the cache does not list it, all of it is read, so its size is
    /// limited.
    fn searched(&mut self, directory: &ContainerPath) -> Result<(), Unusable> {
        let path = directory.as_path();
        let Some(found) = self.find(path)? else {
            return Ok(());
        };
        if self.known.insert(identity(&found.2)) && self.libraries(&found)? > MAX_LIBRARIES {
            return Err(Unusable::ManyUnlisted(path.to_owned()));
        }
        Ok(())
    }

    /// Counts the libraries in a directory; fails if some are for some CPUs only.
    fn libraries(&self, (path, fd, _): &OpenDirectory<'_>) -> Result<usize, Unusable> {
        let mut libraries = Vec::new();
        let mut subdirectories = false;
        let listed = open_to_list(fd).and_then(|fd| {
            directory::list(fd.as_fd(), &mut { MAX_NAMES }, |entry| {
                let can_be_file = entry.kind != libc::DT_DIR;
                if can_be_file && library::is_name(entry.name.as_bytes()) {
                    libraries.push(entry.name.to_owned());
                }
                let known = FOR_FEATURES_BEFORE.iter().chain([&FOR_FEATURES]);
                let mut known = known.map(OsStr::new);
                subdirectories |=
                    entry.kind != libc::DT_REG && known.any(|known| known == entry.name);
            })
        });
        listed.map_err(|errno| unreadable(path, errno))?;
        if subdirectories {
            return Err(Unusable::ForSomeProcessors(path.to_path_buf()));
        }
        if self.after_mounts {
            libraries.retain(|name| !contents::is_mounted(self.image, path, name));
        }
        Ok(libraries.len())
    }

    /// Fails if a directory was changed after the cache was written, unless by the mount points of an engine: then the
    /// names in it are all that counts.
    fn unchanged(&self, (path, fd, stat): &OpenDirectory<'_>) -> Result<(), Unusable> {
        if !Time::modified(stat).is_after(self.written) {
            return Ok(());
        }
        let mut has_mounts = false;
        if self.after_mounts {
            let listed = open_to_list(fd).and_then(|opened| {
                directory::list(opened.as_fd(), &mut { MAX_NAMES }, |entry| {
                    has_mounts = has_mounts
                        || library::is_name(entry.name.as_bytes())
                            && contents::is_mounted(self.image, path, entry.name);
                })
            });
            listed.map_err(|errno| unreadable(path, errno))?;
        }
        if has_mounts {
            return Ok(());
        }
        Err(Unusable::OlderThan(path.to_path_buf()))
    }

    /// Fails if a subdirectory for some CPUs was changed after the cache was written.
    fn unchanged_below(&self, (path, ..): &OpenDirectory<'_>) -> Result<(), Unusable> {
        let mut below = Vec::new();
        let path = path.join(FOR_FEATURES);
        let Some((_, fd, _)) = self.find(&path)? else {
            return Ok(());
        };
        let opened = open_to_list(&fd).map_err(|errno| unreadable(&path, errno))?;
        let listed = directory::list(opened.as_fd(), &mut { MAX_NAMES }, |entry| {
            let has_room = below.len() <= MAX_LIBRARIES;
            if has_room && entry.name != ".." && entry.kind != libc::DT_REG {
                below.push(entry.name.to_owned());
            }
        });
        listed.map_err(|errno| unreadable(&path, errno))?;
        if below.len() > MAX_LIBRARIES {
            return Err(Unusable::ManyDirectories(path));
        }
        for name in below {
            if let Some(found) = self.find(&path.join(name))? {
                self.unchanged(&found)?;
            }
        }
        Ok(())
    }

    /// Returns a directory, if it exists and is one.
    fn find<'p>(&self, path: &'p Path) -> Result<Option<OpenDirectory<'p>>, Unusable> {
        if Instant::now() > self.until {
            return Err(Unusable::Slow);
        }
        let fd = match self.image.root.resolve_directory(path) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(unreadable(path, errno)),
        };
        let stat = inroot::stat(fd.as_fd()).map_err(|errno| unreadable(path, errno))?;
        Ok(Some((path, fd, stat)))
    }
}

/// Groups the entries of a cache by directory.
fn by_directory<'a, 'l>(listing: &'l Listing<'a>) -> HashMap<&'a [u8], Vec<&'l CacheLine<'a>>> {
    let mut lines: HashMap<_, Vec<_>> = HashMap::new();
    for line in &listing.lines {
        lines.entry(line.directory).or_default().push(line);
    }
    lines
}

impl Directory {
    /// Returns its name for messages.
    pub(crate) fn name(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}
