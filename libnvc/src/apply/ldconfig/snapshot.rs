//! Takes a snapshot of everything that ldconfig may change in a container's root, and restores it if ldconfig or a
//! later step fails.
//!
//! ldconfig replaces /etc/ld.so.cache and its own /var/cache/ldconfig/aux-cache; with -X it leaves links alone. Taking a
//! snapshot only reads and opens; file contents are read only to be restored.

mod aux_cache;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;

use self::aux_cache::MissingDirectory;
use crate::apply::saved_file::{self, SavedFile};
use crate::apply::volumes::authority::Authority;
use crate::apply::volumes::rights::Rights;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{Image, RootDir};
use crate::ldcache::configured::{Blocks, Configuration, FIFO, LEASE};

/// State before ldconfig.
#[derive(Debug)]
pub struct Snapshot {
    cache: Option<SavedFile>,
    /// ldconfig's auxiliary cache; None if its directory did not exist.
    aux_cache: Option<SavedFile>,
    /// That directory, if ldconfig can create it.
    missing: Option<MissingDirectory>,
}

const AUX_CACHE_DIRECTORY: &str = "/var/cache/ldconfig";
const AUX_CACHE: &str = "aux-cache";

impl Snapshot {
    /// Takes one if ldconfig may change only what is on the root's own mount.
    ///
    /// # Errors
    /// As if there were no other mount.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_root_alone(rootfs: impl AsFd, descriptors: impl AsFd) -> Result<Self> {
        let root = copy_of_root(rootfs.as_fd())?;
        let authority = Authority::of_root_alone(&root, descriptors.as_fd())?;
        Self::take(rootfs, descriptors, &authority)
    }

    /// Takes a snapshot of a container's root, in the mount namespace of the calling thread, before ldconfig runs there.
    /// `descriptors` is this thread's `/proc/thread-self/fd`, opened while /proc was not the container's. ldconfig may
    /// change what the authority permits.
    ///
    /// # Errors
    /// Kind [`ErrorKind::LdCache`]: an existing file cannot be read, or is a fifo, on which ldconfig would block until
    /// its deadline; the cache is on a volume.
    pub(in crate::apply) fn take(
        rootfs: impl AsFd,
        descriptors: impl AsFd,
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
        if let Some(saved) = &cache {
            check_obstacles(saved, Path::new("/etc/ld.so.cache"), false)?;
        }
        if let Some(saved) = &aux_cache {
            check_obstacles(saved, &Path::new(AUX_CACHE_DIRECTORY).join(AUX_CACHE), true)?;
        }
        let image = Image {
            root: &root,
            descriptors: descriptors.as_fd(),
        };
        Configuration::read(image).map_err(|Blocks { path, why }| would_wait(&path, why))?;
        let missing = match &aux_cache {
            Some(_) => None,
            None => MissingDirectory::find(&root, authority)
                .map_err(|errno| failed("saving", Path::new(AUX_CACHE_DIRECTORY), errno))?,
        };
        Ok(Self {
            cache,
            aux_cache,
            missing,
        })
    }

    /// Returns true if everything that ldconfig may change can be restored. Sockets and devices with its files' names
    /// cannot, nor unreadable files.
    pub fn is_complete(&self) -> bool {
        let mut saved = self.cache.iter().chain(&self.aux_cache);
        saved.all(SavedFile::can_come_back)
    }

    /// Removes unfinished files in the way of those that ldconfig writes.
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
            done(directory.remove(), aux_cache);
        }
        if errors.is_empty() {
            return Ok(());
        }
        let first = errors.remove(0);
        Err(first.with_cleanup(errors))
    }
}

fn copy_of_root(root: BorrowedFd<'_>) -> Result<RootDir> {
    let fd = root.try_clone_to_owned();
    let fd = fd.map_err(|e| failed("saving", Path::new("/"), errno_of(&e)))?;
    Ok(RootDir::from_fd(fd))
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

/// Checks that one of ldconfig's files can be restored in bounded time, and that it would not block on one.
fn check_obstacles(saved: &SavedFile, path: &Path, is_read: bool) -> Result<()> {
    if saved.is_too_large() {
        return Err(too_large(path));
    }
    if is_read && saved.is_fifo() {
        return Err(would_wait(path, FIFO));
    }
    let temporary = path.with_file_name(saved_file::temporary(saved.name()));
    let is_obstructed = saved.is_obstructed_by_fifo();
    if is_obstructed.map_err(|errno| failed("saving", &temporary, errno))? {
        return Err(would_wait(&temporary, FIFO));
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

fn failed(what: &str, path: &Path, errno: Errno) -> Error {
    Error::file(&format!("{what} failed"), path, errno).with_kind(ErrorKind::LdCache)
}
