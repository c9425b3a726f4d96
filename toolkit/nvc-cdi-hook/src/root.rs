//! Works below a container's root by descriptor, so that nothing in it can escape it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use libnvc::RootDir;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fchmod, fstat,
    fstatvfs, linkat, mkdirat, open, openat, readlinkat, renameat, statat, statx, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::{Failure, Result, volume};

/// Number of names read in a directory of the image, which can have any number.
pub(crate) const MOST_NAMES: usize = 1 << 16;

/// Number of names tried for a temporary file.
const TRIES: u32 = 100;

/// A container's root.
#[derive(Debug)]
pub(crate) struct Root {
    root: RootDir,
    /// Its path on the host, for messages.
    path: PathBuf,
}

/// A directory in the root, and a name in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) directory: OwnedFd,
    pub(crate) name: OsString,
}

impl Root {
    /// Opens a root by its host path. It must be a mount point, and not the host's own root.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let failed =
            |errno| Failure::of("opening the container's root failed", path.display(), errno);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(failed)?;
        let host = rustix::fs::stat("/").map_err(failed)?;
        let own = fstat(&fd).map_err(failed)?;
        if (own.st_dev, own.st_ino) == (host.st_dev, host.st_ino) {
            let text = format!("the container's root {} is the host's", path.display());
            return Err(Failure::new(text));
        }
        let found = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(failed)?;
        // Kernels before 5.8 do not report this.
        let says = found
            .stx_attributes_mask
            .contains(StatxAttributes::MOUNT_ROOT);
        if says && !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            let text = format!(
                "the container's root {} is not a mount point",
                path.display()
            );
            return Err(Failure::new(text));
        }
        let name = rustix::fs::readlinkat(rustix::fs::CWD, own_name(fd.as_fd()), Vec::new());
        let path = name.map_or_else(
            |_| path.into(),
            |name| PathBuf::from(OsStr::from_bytes(name.to_bytes())),
        );
        Ok(Self {
            root: RootDir::from_fd(fd),
            path,
        })
    }

    /// Makes the root's mount writable, if it is read-only, until [`Writable::restore`]. crun makes it read-only before
    /// it runs hooks.
    pub(crate) fn make_writable(&self) -> Option<Writable> {
        let fd = self.root.as_fd().try_clone_to_owned().ok()?;
        let found = fstatvfs(&fd).ok()?.f_flag;
        if !found.contains(StatVfsMountFlags::RDONLY) {
            return None;
        }
        let mut flags = MountFlags::BIND;
        for (has, flag) in [
            (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
            (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
            (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
            (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        ] {
            flags.set(flag, found.contains(has));
        }
        // If this fails, the operation that needs it reports the error.
        mount_remount(own_name(fd.as_fd()), flags, "").ok()?;
        Some(Writable {
            fd,
            flags,
            path: self.path.clone(),
            is_restored: false,
        })
    }

    /// Duplicates the root's descriptor.
    pub(crate) fn try_clone(&self) -> Result<OwnedFd> {
        let cloned = self.root.as_fd().try_clone_to_owned();
        cloned.map_err(|error| Failure::of("dup failed", self.path.display(), error))
    }

    /// Returns its path on the host.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a path by reference only. None if it does not exist.
    pub(crate) fn find(&self, path: &Path) -> Result<Option<OwnedFd>> {
        self.unless_missing(path, self.root.resolve(path).map_err(errno))
    }

    /// Opens a directory for listing. None if it does not exist.
    pub(crate) fn directory(&self, path: &Path) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = self.root.resolve_directory(path).map_err(errno);
        let open = |found| openat(&found, ".", flags, Mode::empty());
        self.unless_missing(path, found.and_then(open))
    }

    fn unless_missing(
        &self,
        path: &Path,
        found: Result<OwnedFd, Errno>,
    ) -> Result<Option<OwnedFd>> {
        match found {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(self.failure("open failed", path, errno)),
        }
    }

    /// Returns a descriptor's current path inside the root. For messages only.
    pub(crate) fn name_of(&self, fd: BorrowedFd<'_>) -> Result<PathBuf> {
        let failed = |errno| Failure::of("readlink failed", own_name(fd), errno);
        let name = readlinkat(rustix::fs::CWD, own_name(fd), Vec::new()).map_err(failed)?;
        let name = Path::new(OsStr::from_bytes(name.to_bytes())).to_path_buf();
        let below = name
            .strip_prefix(&self.path)
            .map_err(|_| failed(Errno::XDEV))?;
        Ok(Path::new("/").join(below))
    }

    /// Returns the directory and name of a path; creates missing directories.
    pub(crate) fn place(&self, path: &Path, mode: u32) -> Result<Place> {
        let last = path.components().next_back();
        let (Some(Component::Normal(name)), false) =
            (last, path.as_os_str().as_bytes().ends_with(b"/"))
        else {
            return Err(Failure::new(format!(
                "{} is not a file name",
                path.display()
            )));
        };
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok(Place {
            directory: self.make_directories(parent, mode)?,
            name: name.into(),
        })
    }

    /// Opens a directory for creating files; creates missing components with this mode.
    ///
    /// They are created by descriptor, one by one: by name, a process that exchanges a link on a volume could have them
    /// created there.
    pub(crate) fn make_directories(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        let failed = |errno| self.failure("mkdir failed", path, errno);
        let found = path.ancestors().find_map(|above| {
            let handle = self.root.resolve(above).ok()?;
            Some((handle, path.strip_prefix(above).ok()?))
        });
        let (found, missing) = found.ok_or_else(|| failed(Errno::NOENT))?;
        let mut directory = self.own(path, found)?;
        for part in missing.components() {
            let Component::Normal(name) = part else {
                return Err(failed(Errno::NOENT));
            };
            match mkdirat(&directory, name, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(&directory, name, flags, Mode::empty()).map_err(failed)?;
            directory = self.own(path, made)?;
        }
        Ok(directory)
    }

    /// Returns the same descriptor, if its file belongs to the container rather than a volume.
    pub(crate) fn own(&self, path: &Path, found: OwnedFd) -> Result<OwnedFd> {
        let failed = |errno| self.failure("stat failed", path, errno);
        let is_own = volume::is_own(self.root.as_fd(), &self.path, found.as_fd());
        match is_own.map_err(failed)? {
            true => Ok(found),
            false => Err(Failure {
                is_closed: true,
                ..Failure::new(format!(
                    "{} in the container is on a volume, which may not be changed",
                    path.display()
                ))
            }),
        }
    }

    /// Describes a failure at a path of the container.
    pub(crate) fn failure(&self, operation: &str, path: &Path, errno: Errno) -> Failure {
        let object = format_args!("{} in the container", path.display());
        Failure {
            is_closed: errno == Errno::ROFS,
            ..Failure::of(operation, object, errno)
        }
    }
}

/// A root that was read-only, and must be again before the hook ends.
#[derive(Debug)]
pub(crate) struct Writable {
    fd: OwnedFd,
    flags: MountFlags,
    /// Its path on the host, for messages.
    path: PathBuf,
    is_restored: bool,
}

impl Writable {
    /// Makes the mount read-only again.
    pub(crate) fn restore(mut self) -> Result<()> {
        self.is_restored = true;
        let remounted = self.remount();
        let operation = "making the container's root read-only again failed";
        remounted.map_err(|errno| Failure::of(operation, self.path.display(), errno))
    }

    fn remount(&self) -> Result<(), Errno> {
        let flags = self.flags | MountFlags::RDONLY;
        mount_remount(own_name(self.fd.as_fd()), flags, "")
    }
}

/// For a panic in the hook.
impl Drop for Writable {
    fn drop(&mut self) {
        if !self.is_restored {
            let _ = self.remount();
        }
    }
}

impl Place {
    /// Creates a symlink; replaces anything but a directory.
    pub(crate) fn link(&self, target: &str) -> Result<(), Errno> {
        if self.leads_to(target) {
            return Ok(());
        }
        self.put(|name| symlinkat(target, &self.directory, name))
    }

    /// Returns true if the name exists and is no directory.
    pub(crate) fn is_taken(&self) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = statat(&self.directory, self.name.as_os_str(), flags);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory)
    }

    /// Returns true if it is a link with this target.
    pub(crate) fn leads_to(&self, target: &str) -> bool {
        let found = readlinkat(&self.directory, self.name.as_os_str(), Vec::new());
        found.is_ok_and(|found| found.to_bytes() == target.as_bytes())
    }

    /// Writes a file; replaces anything but a directory.
    pub(crate) fn write(&self, text: &[u8], mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        // An unnamed file cannot be left behind; on filesystems without O_TMPFILE use a named one.
        match openat(&self.directory, ".", flags, mode) {
            Ok(file) => {
                fill(&file, text, mode)?;
                let own = own_name(file.as_fd());
                self.put(|name| {
                    linkat(
                        rustix::fs::CWD,
                        own.as_str(),
                        &self.directory,
                        name,
                        AtFlags::SYMLINK_FOLLOW,
                    )
                })
            }
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                self.put(|name| {
                    let file = openat(&self.directory, name, flags, mode)?;
                    fill(&file, text, mode).inspect_err(|_| self.forget(name))
                })
            }
            Err(errno) => Err(errno),
        }
    }

    /// Creates a file under a temporary name and renames it.
    fn put(&self, make: impl Fn(&OsStr) -> Result<(), Errno>) -> Result<(), Errno> {
        for n in 0..TRIES {
            let name = OsString::from(format!(".nvidia-cdi-hook.{}.{n}", std::process::id()));
            match make(&name) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno),
            }
            let renamed = renameat(&self.directory, &name, &self.directory, &self.name);
            return renamed.inspect_err(|_| self.forget(&name));
        }
        Err(Errno::EXIST)
    }

    fn forget(&self, name: &OsStr) {
        let _ = unlinkat(&self.directory, name, AtFlags::empty());
    }
}

fn fill(file: &OwnedFd, text: &[u8], mode: Mode) -> Result<(), Errno> {
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::write(file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    fchmod(file, mode)
}

/// Returns the caller's name for a descriptor, in the host's /proc.
pub(crate) fn own_name(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens a regular file that was opened by reference: opening a device could have side effects, and so could reading a
/// file that the kernel generates.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> Result<File, Errno> {
    if FileType::from_raw_mode(fstat(fd)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    if libnvc::is_kernel_file(fd) {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open(own_name(fd), flags, Mode::empty()).map(File::from)
}

/// Reads such a file, up to a limit.
pub(crate) fn read(fd: BorrowedFd<'_>, limit: u64) -> Result<Vec<u8>, Errno> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = reopen(fd)?.take(limit).read_to_end(&mut bytes);
    read.map_err(|error| {
        error
            .raw_os_error()
            .map_or(Errno::IO, Errno::from_raw_os_error)
    })?;
    Ok(bytes)
}

fn errno(errno: impl Into<std::io::Error>) -> Errno {
    Errno::from_io_error(&errno.into()).unwrap_or(Errno::IO)
}
