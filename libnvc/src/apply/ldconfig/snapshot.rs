//! Takes a snapshot of everything that ldconfig may change in a container's root, and restores it if ldconfig or a
//! later step fails.
//!
//! ldconfig replaces /etc/ld.so.cache and its own /var/cache/ldconfig/aux-cache, and creates or changes a symlink for
//! each library in the directories it searches: those of its command line and of /etc/ld.so.conf, and the built-in
//! ones. Taking a snapshot only reads and opens; file contents are read only to be restored. Links that ldconfig
//! changed are restored as new links, owned by the user who restores them.

mod aux_cache;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, Whence, lseek, unlinkat};

use self::aux_cache::MissingDirectory;
use crate::apply::saved_file::{self, SavedFile};
use crate::apply::volumes::authority::Authority;
use crate::apply::volumes::rights::Rights;
use crate::directory;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{self, Identity, Image, RootDir};
use crate::ldcache::configured::{Blocks, Configuration, FIFO, LEASE};
use crate::ldcache::{FOR_FEATURES, FOR_FEATURES_BEFORE, built_in, library};
use crate::path::ContainerPath;

/// Limits on what an image can make this store.
const MAX_DIRECTORIES: usize = 256;
const MAX_LINKS: usize = 1 << 16;
/// Total bytes of link names and targets.
const MAX_BYTES: usize = 16 << 20;
/// Total number of names.
const MAX_NAMES: usize = 1 << 19;
/// Time limit for finding and listing them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// State before ldconfig.
#[derive(Debug)]
pub struct Snapshot {
    root: RootDir,
    cache: Option<SavedFile>,
    /// ldconfig's auxiliary cache; None if its directory did not exist.
    aux_cache: Option<SavedFile>,
    /// That directory, if ldconfig can create it.
    missing: Option<MissingDirectory>,
    directories: Vec<Directory>,
    /// True if everything that ldconfig may change is included.
    is_complete: bool,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    /// The rights for changing it.
    rights: Rights,
    /// Symlinks and their targets.
    links: BTreeMap<OsString, OsString>,
}

const AUX_CACHE_DIRECTORY: &str = "/var/cache/ldconfig";
const AUX_CACHE: &str = "aux-cache";

impl Snapshot {
    /// Takes one if ldconfig may change only what is on the root's own mount.
    ///
    /// # Errors
    /// As if there were no other mount.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_root_alone(
        rootfs: impl AsFd,
        descriptors: impl AsFd,
        directories: &[ContainerPath],
    ) -> Result<Self> {
        let root = copy_of_root(rootfs.as_fd())?;
        let authority = Authority::of_root_alone(&root, descriptors.as_fd())?;
        Self::take(rootfs, descriptors, directories, &authority)
    }

    /// Takes a snapshot of a container's root, in the mount namespace of the calling thread, before ldconfig runs there
    /// with these directories on its command line. `descriptors` is this thread's `/proc/thread-self/fd`, opened while
    /// /proc was not the container's. ldconfig may change what the authority permits.
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: an existing file cannot be read, or is a fifo, on which ldconfig would block until
    /// its deadline; the cache is on a volume.
    pub(in crate::apply) fn take(
        rootfs: impl AsFd,
        descriptors: impl AsFd,
        directories: &[ContainerPath],
        authority: &Authority,
    ) -> Result<Self> {
        let root = copy_of_root(rootfs.as_fd())?;
        let files = Files {
            root: &root,
            authority,
            descriptors: descriptors.as_fd(),
        };
        let cache = files.save("/etc", "ld.so.cache")?;
        if let Some(cache) = cache
            .as_ref()
            .filter(|cache| cache.rights() == Rights::Nothing)
        {
            let place = Path::new("/etc/ld.so.cache");
            let error = authority.refusal("file creation failed", place, cache.parent().as_fd());
            return Err(error.with_kind(ErrorKind::LdCache));
        }
        let aux_cache = files.save(AUX_CACHE_DIRECTORY, AUX_CACHE)?;
        check_obstacles(cache.as_ref(), aux_cache.as_ref())?;
        let can_come_back = |saved: &Option<SavedFile>| {
            let saved = saved.as_ref();
            saved.is_none_or(SavedFile::can_come_back)
        };
        let is_complete = can_come_back(&cache) && can_come_back(&aux_cache);
        let missing = match &aux_cache {
            Some(_) => None,
            None => MissingDirectory::find(&root, authority)
                .map_err(|errno| failed("saving", Path::new(AUX_CACHE_DIRECTORY), errno))?,
        };
        let mut snapshot = Self {
            root,
            cache,
            aux_cache,
            missing,
            directories: Vec::new(),
            is_complete,
        };
        snapshot.take_links(directories, descriptors.as_fd(), authority)?;
        Ok(snapshot)
    }

    /// Returns true if everything that ldconfig may change can be restored. Sockets and devices with its files' names
    /// cannot, nor unreadable files and those beyond the limits.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Removes files in the way of those that ldconfig writes; [`restore`](Self::restore) brings them back.
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: a file cannot be removed.
    pub fn clear_way(&self) -> Result<()> {
        for (kept, path) in [
            (&self.cache, "/etc/ld.so.cache~"),
            (&self.aux_cache, "/var/cache/ldconfig/aux-cache~"),
        ] {
            let cleared = kept.as_ref().map_or(Ok(()), SavedFile::clear_way);
            cleared.map_err(|errno| failed("file removal", Path::new(path), errno))?;
        }
        Ok(())
    }

    fn take_links(
        &mut self,
        directories: &[ContainerPath],
        descriptors: BorrowedFd<'_>,
        authority: &Authority,
    ) -> Result<()> {
        let mut paths: Vec<PathBuf> = Vec::new();
        paths.extend(directories.iter().map(|path| path.as_path().to_owned()));
        paths.extend(built_in());
        paths.extend(configured(&self.root, descriptors)?);

        let mut known = BTreeSet::new();
        let mut budget = Budget {
            links: MAX_LINKS,
            bytes: MAX_BYTES,
            names: MAX_NAMES,
            until: Instant::now() + TIMEOUT,
        };
        let mut named = BTreeSet::new();
        for path in paths {
            if !named.insert(path.clone()) {
                continue;
            }
            // ldconfig cannot change a directory that cannot be opened; a failure here must not stop it.
            let taken = self
                .root
                .resolve_directory(&path)
                .and_then(|fd| self.take_directory(&path, &fd, authority, &mut known, &mut budget));
            match taken {
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(Errno::ENOBUFS) => {
                    log::warn!("the image has too many files: not all links could be restored");
                    self.is_complete = false;
                    break;
                }
                Err(errno) => {
                    log::debug!("not saving {}: {errno}", path.display());
                    self.is_complete = false;
                }
            }
        }
        Ok(())
    }

    fn take_directory(
        &mut self,
        path: &Path,
        found: &OwnedFd,
        authority: &Authority,
        known: &mut BTreeSet<Identity>,
        budget: &mut Budget,
    ) -> Result<(), Errno> {
        if Instant::now() > budget.until {
            return Err(Errno::ENOBUFS);
        }
        if !known.insert(inroot::identity_of(found)?) {
            return Ok(());
        }
        if self.directories.len() >= MAX_DIRECTORIES {
            return Err(Errno::ENOBUFS);
        }
        // On a volume that ldconfig may not change there is nothing to restore.
        let rights = authority.rights_of_ldconfig(found.as_fd())?;
        if rights == Rights::Nothing {
            return Ok(());
        }
        let fd = inroot::open_to_list(found)?;
        let room = MAX_DIRECTORIES.saturating_sub(self.directories.len());
        let (links, below) = links_and_directories(path, &fd, room, budget)?;
        self.directories.push(Directory {
            path: path.to_owned(),
            fd,
            rights,
            links,
        });
        for name in below {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let found = openat(found, name.as_os_str(), flags, Mode::empty())?;
            self.take_directory(&path.join(&name), &found, authority, known, budget)?;
        }
        Ok(())
    }

    /// Restores everything that differs.
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: the first file that could not be restored, with the other failures attached.
    pub fn restore(&self) -> Result<()> {
        let mut errors = Vec::new();
        let mut done = |result: Result<(), Errno>, path: &Path| {
            if let Err(errno) = result {
                errors.push(failed("putting back", path, errno));
            }
        };
        if let Some(cache) = &self.cache {
            done(cache.put_back(), Path::new("/etc/ld.so.cache"));
        }
        let aux_cache = Path::new(AUX_CACHE_DIRECTORY);
        if let Some(kept) = &self.aux_cache {
            done(kept.put_back(), &aux_cache.join(AUX_CACHE));
        }
        if let Some(directory) = &self.missing {
            done(directory.remove(&self.root), aux_cache);
        }
        for directory in &self.directories {
            done(
                directory.rights.act(|| directory.put_back()),
                &directory.path,
            );
        }
        if errors.is_empty() {
            return Ok(());
        }
        let first = errors.remove(0);
        Err(first.with_cleanup(errors))
    }
}

impl Directory {
    fn put_back(&self) -> Result<(), Errno> {
        let mut made = Vec::new();
        lseek(&self.fd, 0, Whence::SeekSet)?;
        directory::list(self.fd.as_fd(), &mut { MAX_NAMES }, |entry| {
            let is_link = matches!(entry.kind, libc::DT_LNK | libc::DT_UNKNOWN);
            let can_be_its = is_link && library::is_name(entry.name.as_bytes());
            if can_be_its && made.len() < MAX_LINKS && !self.links.contains_key(entry.name) {
                made.push(entry.name.to_owned());
            }
        })?;
        for name in made {
            // Any other link was not made by ldconfig.
            match readlinkat(&self.fd, name.as_os_str()) {
                Ok(target) if is_ldconfigs(&name, &target) => {
                    unlinkat(&self.fd, name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
                }
                _ => {}
            }
        }
        for (name, target) in &self.links {
            match readlinkat(&self.fd, name.as_os_str()) {
                Ok(now) if now == *target => {}
                Ok(now) if is_ldconfigs(name, &now) => saved_file::relink(&self.fd, name, target)?,
                // ldconfig removes dangling links with names of libraries.
                Err(Errno::ENOENT) if library::is_name(name.as_bytes()) => {
                    saved_file::relink(&self.fd, name, target)?;
                }
                // Not made by ldconfig: another link or file.
                Ok(_) | Err(Errno::ENOENT | Errno::EINVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Returns true if ldconfig can have created a link: with a library's name, to a library beside it.
fn is_ldconfigs(name: &OsStr, target: &OsStr) -> bool {
    let is_beside = !target.as_bytes().contains(&b'/');
    is_beside && library::is_name(name.as_bytes()) && library::is_name(target.as_bytes())
}

fn copy_of_root(root: BorrowedFd<'_>) -> Result<RootDir> {
    let fd = root.try_clone_to_owned();
    let fd = fd.map_err(|e| failed("saving", Path::new("/"), errno_of(&e)))?;
    Ok(RootDir::from_fd(fd))
}

/// Returns the directories of /etc/ld.so.conf and its includes.
fn configured(root: &RootDir, descriptors: BorrowedFd<'_>) -> Result<Vec<PathBuf>> {
    let configuration = Configuration::read(Image { root, descriptors });
    let configuration = configuration.map_err(|Blocks { path, why }| would_wait(&path, why))?;
    if configuration.too_large {
        log::warn!("the image's /etc/ld.so.conf is too large: not all links could be restored");
    }
    Ok(configuration.directories)
}

/// The rest of the limits.
struct Budget {
    links: usize,
    bytes: usize,
    names: usize,
    until: Instant,
}

impl Budget {
    fn take_link(&mut self, name: &OsStr) -> Option<()> {
        self.links = self.links.checked_sub(1)?;
        self.take_bytes(name)
    }

    fn take_bytes(&mut self, text: &OsStr) -> Option<()> {
        self.bytes = self.bytes.checked_sub(text.len())?;
        Some(())
    }
}

/// Symlinks of a directory with their targets, and its subdirectories that ldconfig searches too.
type Listing = (BTreeMap<OsString, OsString>, Vec<OsString>);

/// Reads a directory's links; `ENOBUFS` if there are too many, or more than `room` directories.
fn links_and_directories(
    path: &Path,
    fd: &OwnedFd,
    room: usize,
    budget: &mut Budget,
) -> Result<Listing, Errno> {
    let mut links = BTreeMap::new();
    let mut below = Vec::new();
    // Counted while listing: the listing stops at the limit.
    let mut names = budget.names;
    let mut enough = false;
    directory::list(fd.as_fd(), &mut names, |entry| match entry.kind {
        _ if enough => {}
        libc::DT_DIR if has_libraries(path, entry.name) => {
            enough |= below.len() > room;
            below.push(entry.name.to_owned());
        }
        // Some filesystems do not report types: readlinkat finds out.
        libc::DT_LNK | libc::DT_UNKNOWN if library::is_name(entry.name.as_bytes()) => {
            enough |= budget.take_link(entry.name).is_none();
            links.insert(entry.name.to_owned(), OsString::new());
        }
        _ => {}
    })?;
    budget.names = names;
    if enough {
        return Err(Errno::ENOBUFS);
    }
    links.retain(|name, target| match readlinkat(fd, name.as_os_str()) {
        Ok(text) => {
            enough |= budget.take_bytes(&text).is_none();
            *target = if enough { OsString::new() } else { text };
            true
        }
        Err(_) => false,
    });
    if enough {
        Err(Errno::ENOBUFS)
    } else {
        Ok((links, below))
    }
}

/// Saves files of a root.
struct Files<'a> {
    root: &'a RootDir,
    authority: &'a Authority,
    /// This thread's `/proc/thread-self/fd`.
    descriptors: BorrowedFd<'a>,
}

impl Files<'_> {
    /// Saves a file that ldconfig may replace; None if its directory is missing, so that ldconfig cannot create it.
    fn save(&self, directory: &str, name: &'static str) -> Result<Option<SavedFile>> {
        let path = Path::new(directory);
        match self.root.resolve_directory(path) {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(errno) => Err(errno),
            Ok(parent) => {
                let rights = self.authority.rights_of_ldconfig(parent.as_fd());
                rights.and_then(|rights| {
                    SavedFile::take(parent, rights, name, self.descriptors).map(Some)
                })
            }
        }
        .map_err(|errno| match errno {
            Errno::EAGAIN => would_wait(&path.join(name), LEASE),
            errno => failed("saving", &path.join(name), errno),
        })
    }
}

/// Checks that ldconfig's files can be restored in bounded time, and that it would not block on one.
fn check_obstacles(cache: Option<&SavedFile>, aux_cache: Option<&SavedFile>) -> Result<()> {
    let cache = cache.map(|saved| (saved, Path::new("/etc/ld.so.cache")));
    let aux_cache = aux_cache.map(|saved| (saved, Path::new("/var/cache/ldconfig/aux-cache")));
    for (saved, path) in cache.into_iter().chain(aux_cache) {
        if let Some(name) = saved.too_large() {
            return Err(too_large(&path.with_file_name(name)));
        }
    }
    let temporary = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push("~");
        PathBuf::from(name)
    };
    if let Some((saved, path)) = cache
        && saved.is_obstructed_by_fifo()
    {
        return Err(would_wait(&temporary(path), FIFO));
    }
    if let Some((saved, path)) = aux_cache {
        if saved.is_fifo() {
            return Err(would_wait(path, FIFO));
        }
        if saved.is_obstructed_by_fifo() {
            return Err(would_wait(&temporary(path), FIFO));
        }
    }
    Ok(())
}

/// Describes a fifo, or another file on which ldconfig would block.
fn would_wait(path: &Path, why: &str) -> Error {
    let error = Error::new(ErrorKind::LdCache, "ldconfig would block");
    error.of(path.display()).because(why)
}

/// Describes a file that cannot be restored in bounded time.
fn too_large(path: &Path) -> Error {
    let error = Error::new(ErrorKind::LdCache, "saving failed").of(path.display());
    let error = error.because(format!("it has more than {} bytes", saved_file::MAX_SIZE));
    error.hint("it is not a loader cache: remove it from the image")
}

/// Returns true if ldconfig searches a subdirectory too.
fn has_libraries(parent: &Path, name: &OsStr) -> bool {
    name == FOR_FEATURES
        || parent.file_name() == Some(OsStr::new(FOR_FEATURES)) && name != "." && name != ".."
        || FOR_FEATURES_BEFORE.iter().any(|known| name == *known)
}

fn failed(what: &str, path: &Path, errno: Errno) -> Error {
    Error::file(&format!("{what} failed"), path, errno).with_kind(ErrorKind::LdCache)
}
