//! Resolves paths inside a root directory, so that no link, `..` or magic link leads out of it.
//!
//! Used for the driver root, where absolute links are relative to that root, and for container roots, where every byte
//! is hostile. Each lookup is one openat2(2); if the kernel or a sandbox refuses that call, `pathrs` walks the path in
//! user space with the same guarantees. `..` at the root stays at the root, as with chroot.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlink};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::unistd::{AccessFlags, faccessat};

use crate::error::errno_of;
use crate::read_file;

mod kernel_files;
mod walk;

pub(crate) use walk::Walk;

/// Limit of retries of a lookup that a concurrent rename made uncertain. One is rare, but a process that renames
/// continuously can make every lookup of a path with many `..` fail.
const MAX_TRIES: usize = 4096;

/// Size limit of files that are read whole; the largest are loader caches. A device can be endless.
const MAX_SIZE: u64 = 64 << 20;

/// A directory to resolve paths in.
#[derive(Debug)]
pub(crate) struct RootDir(OwnedFd);

impl RootDir {
    /// Opens a directory by an ordinary path.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = open(path, flags, Mode::empty())?;
        Ok(Self(fd))
    }

    /// Duplicates the descriptor.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        self.0.try_clone().map(Self).map_err(|_| Errno::EMFILE)
    }

    /// Wraps an open directory.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Opens a path by reference only; follows symlinks, including the last.
    pub(crate) fn resolve(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_with(path, OFlag::O_PATH)
    }

    /// Opens a directory by reference only.
    pub(crate) fn resolve_directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_with(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    /// Opens a path by reference only; a symlink in the last component is not followed.
    pub(crate) fn resolve_nofollow(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_with(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
    }

    /// Opens a file or directory of a trusted root for reading, without waiting for the other end of a fifo.
    pub(crate) fn open_file(&self, path: &Path) -> Result<File, Errno> {
        self.open_with(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
            .map(File::from)
    }

    /// Reads a file, up to 64 MiB.
    pub(crate) fn read(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        read_file::read(self.open_file(path)?, MAX_SIZE)
    }

    /// Returns true if a path exists.
    pub(crate) fn exists(&self, path: &Path) -> Result<bool, Errno> {
        match self.resolve(path) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a path by reference, and returns its real path relative to this root: all links resolved.
    ///
    /// For messages only. The file at that path can change, so hostile files must not be reopened by it.
    pub(crate) fn real_path(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Errno> {
        self.real_path_below(&name_of(self.as_fd())?, path)
    }

    /// Does the same if this root's own name is known.
    pub(crate) fn real_path_below(
        &self,
        own: &Path,
        path: &Path,
    ) -> Result<(OwnedFd, PathBuf), Errno> {
        let fd = self.resolve(path)?;
        let real = name_of(fd.as_fd())?;
        let below = real.strip_prefix(own).map_err(|_| Errno::EXDEV)?;
        Ok((fd, Path::new("/").join(below)))
    }

    fn open_with(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        for _ in 0..MAX_TRIES {
            match openat2(&self.0, path, how) {
                // A concurrent rename or mount made a `..` uncertain: retry.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(Errno::ENOSYS | Errno::EPERM) => return self.emulate(path, flags),
                done => return done,
            }
        }
        Err(Errno::EBUSY)
    }

    /// Does the same in user space.
    fn emulate(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        // pathrs makes the same check and, if it fails, repeats it to report the failure, recursing endlessly. So fail
        // first, as in a sandbox that forbids faccessat2 with EPERM.
        let (proc, nofollow) = ("/proc/thread-self", AtFlags::AT_SYMLINK_NOFOLLOW);
        faccessat(AT_FDCWD, proc, AccessFlags::F_OK, nofollow)?;
        let root = pathrs::RootRef::from_fd(self.as_fd());
        if flags.contains(OFlag::O_PATH) {
            let handle = if flags.contains(OFlag::O_NOFOLLOW) {
                root.resolve_nofollow(path)
            } else {
                root.resolve(path)
            };
            let fd = handle.map(OwnedFd::from).map_err(|e| errno(&e))?;
            let is_directory = || stat(fd.as_fd()).map(|stat| kind(&stat) == SFlag::S_IFDIR);
            if flags.contains(OFlag::O_DIRECTORY) && !is_directory()? {
                return Err(Errno::ENOTDIR);
            }
            return Ok(fd);
        }
        use pathrs::flags::OpenFlags;
        let flags = OpenFlags::O_RDONLY
            | OpenFlags::O_NONBLOCK
            | OpenFlags::O_NOCTTY
            | OpenFlags::O_CLOEXEC;
        root.open_subpath(path, flags)
            .map(OwnedFd::from)
            .map_err(|e| errno(&e))
    }
}

impl From<RootDir> for OwnedFd {
    fn from(root: RootDir) -> Self {
        root.0
    }
}

impl AsFd for RootDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the kernel's path of a descriptor.
pub(crate) fn name_of(fd: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let name = readlink(link.as_str())?;
    if name.as_bytes().ends_with(b" (deleted)") {
        return Err(Errno::ENOENT);
    }
    Ok(PathBuf::from(name))
}

/// Reopens the file of a descriptor, for instance for reading if it was opened by reference only.
///
/// Between checking a file and opening it by name, the container can replace it, and opening a device or a fifo can
/// have side effects. `descriptors` is this thread's `/proc/thread-self/fd`, opened while /proc was the caller's own.
///
/// Never blocks: `EOPNOTSUPP` for a file on a kernel filesystem, `EAGAIN` while another process holds a lease on it.
pub(crate) fn reopen(
    descriptors: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    flags: OFlag,
) -> Result<OwnedFd, Errno> {
    if kernel_files::is_one(fd).map_err(|errno| errno_of(&errno.into()))? {
        return Err(Errno::EOPNOTSUPP);
    }
    let name = fd.as_raw_fd().to_string();
    // Without O_NONBLOCK the open would wait for the holder of a lease, as long as the system permits.
    let flags = flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    openat(descriptors, name.as_str(), flags, Mode::empty())
}

/// The calling thread's own fd directory in its /proc.
pub(crate) const OWN_DESCRIPTORS: &str = "/proc/thread-self/fd";

/// Opens the calling thread's [`OWN_DESCRIPTORS`] for [`reopen`].
pub(crate) fn own_descriptors() -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(OWN_DESCRIPTORS, flags, Mode::empty())
}

/// A hostile root, with the descriptor needed to reopen checked files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image<'a> {
    /// The root.
    pub(crate) root: &'a RootDir,
    /// This thread's `/proc/thread-self/fd`, opened while /proc was the caller's own.
    pub(crate) descriptors: BorrowedFd<'a>,
}

impl Image<'_> {
    /// Opens a file for reading that is held by reference: `EINVAL` if it is not a regular file.
    pub(crate) fn open_file(&self, found: BorrowedFd<'_>) -> Result<(File, FileStat), Errno> {
        let stat = stat(found)?;
        Ok((self.open_known(found, &stat)?, stat))
    }

    /// Does the same for a file with a known `stat`.
    pub(crate) fn open_known(&self, found: BorrowedFd<'_>, stat: &FileStat) -> Result<File, Errno> {
        if kind(stat) != SFlag::S_IFREG {
            return Err(Errno::EINVAL);
        }
        reopen(self.descriptors, found, OFlag::O_RDONLY).map(File::from)
    }
}

/// Calls `fstat` on a descriptor, including `O_PATH` ones.
pub(crate) fn stat(fd: BorrowedFd<'_>) -> Result<FileStat, Errno> {
    fstatat(fd, "", AtFlags::AT_EMPTY_PATH)
}

/// Returns the file type in a `stat`.
pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Device and inode: identify a file while it is open or linked.
pub(crate) type Identity = (u64, u64);

/// Returns the identity in a `stat`.
pub(crate) fn identity(stat: &FileStat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Returns the identity of an open file.
pub(crate) fn identity_of(file: impl AsFd) -> Result<Identity, Errno> {
    Ok(identity(&stat(file.as_fd())?))
}

/// Opens a directory for listing that is held by reference, or rewinds one.
pub(crate) fn open_to_list(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    openat(directory, ".", flags, Mode::empty())
}

fn errno(error: &pathrs::error::Error) -> Errno {
    use pathrs::error::ErrorKind;
    match error.kind() {
        ErrorKind::OsError(Some(errno)) => Errno::from_raw(errno),
        ErrorKind::SafetyViolation => Errno::EXDEV,
        ErrorKind::NotImplemented | ErrorKind::NotSupported => Errno::ENOSYS,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, RootDir) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "text").unwrap();
        symlink("/a/b", dir.path().join("absolute")).unwrap();
        symlink("../../../../a/b/file", dir.path().join("a/climbing")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        symlink("/proc/self/root/etc", dir.path().join("magic")).unwrap();
        let root = RootDir::open(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn links_stay_inside() {
        let (_dir, root) = tree();
        assert_eq!(root.read(Path::new("/absolute/file")).unwrap(), b"text");
        assert_eq!(root.read(Path::new("a/climbing")).unwrap(), b"text");
        assert_eq!(
            root.real_path(Path::new("/absolute/file")).unwrap().1,
            Path::new("/a/b/file")
        );
        assert_eq!(root.resolve(Path::new("loop")).unwrap_err(), Errno::ELOOP);
        assert_eq!(root.resolve(Path::new("magic")).unwrap_err(), Errno::ENOENT);
        assert!(root.resolve_nofollow(Path::new("loop")).is_ok());
        assert!(!root.exists(Path::new("/nowhere")).unwrap());
    }

    /// For each `..` the kernel checks whether any rename happened concurrently, anywhere.
    #[test]
    fn renames_elsewhere_cannot_hold_up_a_look_up() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (dir, root) = tree();
        let path = format!("a/{}file", "b/../".repeat(800));
        let stop = AtomicBool::new(false);
        let begin = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (one, other) = (dir.path().join("one"), dir.path().join("other"));
                std::fs::create_dir(&one).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            for _ in 0..3 {
                let found = root.resolve(Path::new(&path));
                assert!([Errno::ENOENT, Errno::EBUSY].contains(&found.unwrap_err()));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    }

    #[test]
    fn the_emulation_agrees() {
        let (_dir, root) = tree();
        for path in [
            "absolute/file",
            "a/climbing",
            "a/../../a",
            "loop",
            "magic",
            "nowhere/x",
            "/",
        ] {
            let path = Path::new(path);
            let emulated = root
                .emulate(path, OFlag::O_PATH)
                .map(|fd| stat(fd.as_fd()).unwrap().st_ino);
            let real = root
                .resolve(path)
                .map(|fd| stat(fd.as_fd()).unwrap().st_ino);
            assert_eq!(emulated, real, "{}", path.display());
        }
    }
}
