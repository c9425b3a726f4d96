//! Finds the container's process and its mount namespace, and pins both by descriptors.
//!
//! *Supervised*, the process is looked up in the caller's own /proc. *Standalone*, the caller already sees the
//! container's filesystems, and its /proc is below the container's root, where an image can place arbitrary files.
//! There each component must prove to be the kernel's own procfs, so that root never enters a namespace chosen by the
//! image.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag};
use nix::sys::statfs::{FsType, NSFS_MAGIC, PROC_SUPER_MAGIC, fstatfs};

use super::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, RootDir};
use crate::mount_id::mount_id;
use crate::read_file;

/// Inode number of the root of every procfs (`PROC_ROOT_INO`).
const PROC_ROOT_INODE: u64 = 1;

/// Upstream's words for a root directory that cannot be one.
const INVALID_ROOTFS: &str = "invalid rootfs directory";

/// The container's process. The descriptor refers to this process even if its pid is reused.
#[derive(Debug)]
pub(crate) struct ContainerProcess {
    /// `/proc/<pid>` for messages.
    path: PathBuf,
    /// None for the container that the caller is in.
    directory: Option<OwnedFd>,
    root: RootDir,
    owner: (u32, u32),
    standalone: bool,
}

/// The container's mount namespace.
#[derive(Debug)]
pub(crate) struct MountNamespace {
    pub(crate) fd: OwnedFd,
    /// True if the caller is already in it.
    pub(crate) is_callers: bool,
    /// True if only the container uses it, so that nothing mounted in it may propagate elsewhere. In a namespace that
    /// the caller shares with other processes, mount propagation is up to the caller.
    pub(crate) is_containers: bool,
}

impl ContainerProcess {
    /// Finds the process and opens the container's root as the process sees it.
    pub(super) fn find(target: Target) -> Result<(PathBuf, Self)> {
        match target {
            Target::Process { pid, rootfs } => {
                let process = Self::find_supervised(pid, &rootfs)?;
                Ok((rootfs, process))
            }
            Target::Inside { pid, rootfs } => {
                let process = Self::find_standalone(pid, &rootfs)?;
                Ok((rootfs, process))
            }
            Target::Parent { rootfs } => {
                let pid = nix::unistd::getppid().as_raw();
                Self::find(Target::Inside { pid, rootfs })
            }
            Target::Here { root } => Self::here(root),
        }
    }

    /// Uses the container that the caller is in, without a process: created files belong to the caller.
    fn here(root: OwnedFd) -> Result<(PathBuf, Self)> {
        let failed = |errno| Error::system(INVALID_ROOTFS, errno);
        let rootfs = inroot::name_of(root.as_fd()).map_err(failed)?;
        let stat = inroot::stat(root.as_fd()).map_err(failed)?;
        if inroot::kind(&stat) != SFlag::S_IFDIR || is_callers_root(root.as_fd())? {
            let error = Error::new(ErrorKind::InvalidArgument, INVALID_ROOTFS);
            let error = error.of(rootfs.display());
            return Err(error.hint("it must be a directory other than `/'"));
        }
        let process = Self {
            path: PathBuf::from("/proc/thread-self"),
            directory: None,
            root: RootDir::from_fd(root),
            owner: (
                nix::unistd::geteuid().as_raw(),
                nix::unistd::getegid().as_raw(),
            ),
            standalone: false,
        };
        Ok((rootfs, process))
    }

    fn find_supervised(pid: i32, rootfs: &Path) -> Result<Self> {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // Upstream opens the root first, so its message names it.
        let failed = |errno| Error::file("open failed", format!("/proc/{pid}/root/"), errno);
        let proc = nix::fcntl::open("/proc", flags, Mode::empty()).map_err(failed)?;
        if !is_of_own_pid_namespace(proc.as_fd()) {
            return Err(other_pid_namespace(
                failed(Errno::ESRCH),
                Path::new("/proc"),
            ));
        }
        let directory = nix::fcntl::open(&path, flags, Mode::empty()).map_err(failed)?;
        let its_root = openat(&directory, "root", flags, Mode::empty()).map_err(failed)?;
        let its_root = RootDir::from_fd(its_root);
        let root = its_root.resolve(rootfs).map_err(|errno| {
            let path = format!("/proc/{pid}/root{}", rootfs.display());
            Error::file("open failed", path, errno)
        })?;
        // The process's root is the container's only if it is another one than the caller's, and not a chroot in the
        // caller's mount namespace: what is mounted there would be mounted for the caller too.
        let its_own = inroot::identity_of(&its_root).map_err(failed)?;
        let is_own = its_own == inroot::identity_of(&root).map_err(failed)?;
        let process = Self::settle(path, directory, root, false)?;
        if is_own && process.mount_namespace()?.is_callers {
            return Err(callers_root());
        }
        Ok(process)
    }

    fn find_standalone(pid: i32, rootfs: &Path) -> Result<Self> {
        let path = rootfs.join(format!("proc/{pid}"));
        let root =
            RootDir::open(rootfs).map_err(|errno| Error::file("open failed", rootfs, errno))?;
        let failed = |errno| Error::file("stat failed", &path, errno);
        let proc = root.resolve(Path::new("/proc")).map_err(failed)?;
        let stat = inroot::stat(proc.as_fd()).map_err(failed)?;
        if !is_on(proc.as_fd(), PROC_SUPER_MAGIC).map_err(failed)? || stat.st_ino != PROC_ROOT_INODE
        {
            let missing = failed(Errno::ENOENT);
            return Err(missing.hint(format!(
                "{}/proc is not a proc file system: mount one",
                rootfs.display()
            )));
        }
        if !is_of_own_pid_namespace(proc.as_fd()) {
            return Err(other_pid_namespace(
                failed(Errno::ENOENT),
                &rootfs.join("proc"),
            ));
        }
        let directory = child(proc.as_fd(), &pid.to_string()).map_err(failed)?;
        Self::settle(path.clone(), directory, OwnedFd::from(root), true)
    }

    fn settle(path: PathBuf, directory: OwnedFd, root: OwnedFd, standalone: bool) -> Result<Self> {
        let stat = inroot::stat(directory.as_fd())
            .map_err(|errno| Error::file("stat failed", &path, errno))?;
        let kind =
            inroot::stat(root.as_fd()).map_err(|errno| Error::file("stat failed", &path, errno))?;
        if inroot::kind(&kind) != SFlag::S_IFDIR {
            return Err(
                Error::new(ErrorKind::InvalidArgument, INVALID_ROOTFS).because("not a directory")
            );
        }
        if is_callers_root(root.as_fd())? {
            return Err(callers_root());
        }
        let root = RootDir::from_fd(root);
        Ok(Self {
            path,
            directory: Some(directory),
            root,
            owner: (stat.st_uid, stat.st_gid),
            standalone,
        })
    }

    /// Returns the container's root as the process sees it, for reading.
    pub(crate) fn root(&self) -> &RootDir {
        &self.root
    }

    /// Returns its directory in /proc; None for the container that the caller is in.
    pub(crate) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(AsFd::as_fd)
    }

    /// Returns its directory in /proc for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the ids of the container's owner: root, mapped by its user namespace.
    pub(crate) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Returns true if the caller works inside the container's root.
    pub(crate) fn is_standalone(&self) -> bool {
        self.standalone
    }

    /// Fails if the process has ended, reaped or not, even if its pid has been reused.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        match nix::fcntl::readlinkat(directory, "ns/mnt") {
            Err(Errno::ENOENT | Errno::ESRCH) => {
                let error = Error::file("stat failed", &self.path, Errno::ESRCH);
                Err(error.hint("the container's process has ended"))
            }
            // Any other error: the process still exists.
            _ => Ok(()),
        }
    }

    /// Opens the mount namespace of the process.
    pub(super) fn mount_namespace(&self) -> Result<MountNamespace> {
        let failed = |errno| Error::file("open failed", self.path.join("ns/mnt"), errno);
        let Some(directory) = &self.directory else {
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
            let fd = nix::fcntl::open("/proc/thread-self/ns/mnt", flags, Mode::empty());
            return Ok(MountNamespace {
                fd: fd.map_err(failed)?,
                is_callers: true,
                is_containers: true,
            });
        };
        let ns = child(directory.as_fd(), "ns").map_err(failed)?;
        let link = openat(
            &ns,
            "mnt",
            OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed)?;
        if !same_mount(ns.as_fd(), link.as_fd()).map_err(failed)? {
            return Err(failed(Errno::EXDEV));
        }
        let text = nix::fcntl::readlinkat(&link, "").map_err(failed)?;
        // By reference, because another file may be mounted over the link, and opening it may have side effects.
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let found = openat(&ns, "mnt", flags, Mode::empty()).map_err(failed)?;
        // The link's text contains the namespace's inode number; any other file has another number.
        let inode = inroot::stat(found.as_fd()).map_err(failed)?.st_ino;
        if !is_on(found.as_fd(), NSFS_MAGIC).map_err(failed)? || text != *format!("mnt:[{inode}]") {
            return Err(failed(Errno::EXDEV));
        }
        let fd = open_for_reading(found.as_fd()).map_err(failed)?;
        let ours = nix::sys::stat::stat("/proc/thread-self/ns/mnt").map_err(failed)?;
        Ok(MountNamespace {
            fd,
            is_callers: ours.st_ino == inode,
            is_containers: ours.st_ino != inode,
        })
    }

    /// Reads one of the process's files in /proc.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path.join(name);
        let failed = |errno| Error::file("open failed", &path, errno);
        let open = || {
            let directory = self.directory.as_ref().ok_or(Errno::ESRCH)?;
            if !self.standalone {
                let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                return openat(directory, name, flags, Mode::empty());
            }
            // By reference first: in the container's own /proc another file may be mounted over this one, and opening a
            // device node can have side effects.
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let found = openat(directory, name, flags, Mode::empty())?;
            if same_mount(directory.as_fd(), found.as_fd())? {
                open_for_reading(found.as_fd())
            } else {
                Err(Errno::EXDEV)
            }
        };
        let fd = open().map_err(failed)?;
        read_file::read_all(File::from(fd))
            .map_err(|errno| Error::file("read failed", &path, errno))
    }
}

/// Returns true if a directory is the caller's own root, by whatever path it was found.
fn is_callers_root(root: BorrowedFd<'_>) -> Result<bool> {
    let failed = |errno| Error::file("stat failed", "/", errno);
    let stat = inroot::stat(root).map_err(failed)?;
    let top = nix::sys::stat::stat("/").map_err(failed)?;
    Ok(inroot::identity(&stat) == inroot::identity(&top))
}

/// Describes a procfs in which the caller's process ids mean other processes.
fn other_pid_namespace(error: Error, proc: &Path) -> Error {
    let proc = proc.display();
    error
        .with_cause(format!("{proc} belongs to another pid namespace"))
        .hint(format!("mount -t proc proc {proc}"))
}

fn callers_root() -> Error {
    Error::new(ErrorKind::InvalidArgument, INVALID_ROOTFS).hint(
        "it is the root of the caller; `/' is accepted with the pid of a process with another root, in a \
         mount namespace of its own",
    )
}

/// Opens an entry of procfs, without following links or crossing mounts.
fn child(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(parent, name, flags, Mode::empty())?;
    if same_mount(parent, fd.as_fd())? {
        Ok(fd)
    } else {
        Err(Errno::EXDEV)
    }
}

/// Returns true if a procfs belongs to this process's own pid namespace, so that a pid in it means the caller's
/// process: a container's root can mount a procfs of another pid namespace that it filled itself.
fn is_of_own_pid_namespace(proc: BorrowedFd<'_>) -> bool {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let own = || {
        let link = openat(proc, "self", flags, Mode::empty())?;
        let text = nix::fcntl::readlinkat(&link, "")?;
        Ok::<_, Errno>(same_mount(proc, link.as_fd())? && text == *std::process::id().to_string())
    };
    own().unwrap_or(false)
}

/// Reopens a file held by reference, by its name in the caller's /proc/self/fd.
fn open_for_reading(found: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let name = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    nix::fcntl::open(name.as_str(), flags, Mode::empty())
}

fn same_mount(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(mount_id(a)? == mount_id(b)?)
}

fn is_on(fd: BorrowedFd<'_>, kind: FsType) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == kind)
}
