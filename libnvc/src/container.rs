//! Discovers the container: its process, namespaces, root, layout and device cgroup, reading only.
//!
//! The host names the container by a process and a root directory. Everything below that root belongs to the image and
//! is hostile, so it is read by descriptors resolved inside the root.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::Serialize;

pub(crate) use layout::{FAMILIES, PROGRAMS, x_modules};

use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, RootDir};
use crate::ldcache::judge::{self, Loader};
use crate::mountinfo;
use crate::options::{CudaCompatMode, Ldconfig};
use crate::path::ContainerPath;
use crate::read_file;
use crate::request::{ImageOptions, ProcessUser};
use crate::sys::mount;

pub(crate) mod cgroup;
mod compat;
mod layout;
mod process;

pub use crate::mountinfo::filesystem_at;
pub use cgroup::DeviceCgroup;
pub(crate) use process::{ContainerProcess, MountNamespace};

/// Identifies the container and the way to reach it.
#[derive(Debug)]
pub enum Target {
    /// The container of a process in the caller's own /proc: an engine's hook, or `--pid`.
    Process {
        /// Any process that is in its mount namespace.
        pid: i32,
        /// Its root directory, absolute, as seen in that namespace.
        rootfs: PathBuf,
    },
    /// The container of a process in the /proc below its root: the caller already sees its filesystems.
    Inside {
        /// Any process that is in its mount namespace.
        pid: i32,
        /// Its root directory, absolute.
        rootfs: PathBuf,
    },
    /// Like `Inside`, for the process that started the caller.
    Parent {
        /// Its root directory, absolute.
        rootfs: PathBuf,
    },
    /// The container whose mount namespace the caller is in: a createContainer hook. There is no process to find, no
    /// namespace to enter, and no cgroup to change.
    Here {
        /// Its root directory.
        root: OwnedFd,
    },
}

/// The caller's description of a container.
#[derive(Debug)]
pub struct ContainerConfig {
    /// Which container.
    pub target: Target,
    /// Known facts about its image.
    pub image: ImageOptions,
    /// Use of its CUDA compatibility libraries, which decides whether to look for them.
    pub compat: CudaCompatMode,
    /// True to look for its device cgroup.
    pub device_cgroup: bool,
    /// True to examine how its loader finds libraries, which a plan needs that adds directories.
    pub loader: bool,
    /// The user that its process will have, if it is another one than now.
    pub user: Option<ProcessUser>,
}

/// Returns true if a descriptor refers to the root of a mount; None if the kernel does not tell, before Linux 5.8.
pub fn is_mount_point(fd: BorrowedFd<'_>) -> Option<bool> {
    mount::place(fd).ok()?.is_root
}

/// Directories for files in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Programs.
    pub bins_dir: ContainerPath,
    /// Native libraries.
    pub libs_dir: ContainerPath,
    /// 32-bit libraries.
    pub libs32_dir: ContainerPath,
    /// The image's CUDA directory.
    pub cudart_dir: ContainerPath,
}

impl Layout {
    /// Returns the directory of the X server's modules.
    pub(crate) fn x_modules(&self) -> ContainerPath {
        layout::x_modules(&self.libs_dir)
    }
}

/// Version of a container's device cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CgroupVersion {
    /// The `devices` hierarchy: rules are written to files.
    V1,
    /// The unified hierarchy: rules are BPF programs.
    V2,
}

/// Facts about an image: plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Directories for files.
    pub layout: Layout,
    /// Real paths of its CUDA compatibility libraries, if they were looked for.
    pub compat_libraries: Vec<ContainerPath>,
    /// What updates its loader's cache.
    pub ldconfig: Ldconfig,
}

/// A discovered container, with the descriptors that pin it.
#[derive(Debug)]
pub struct Container {
    /// Facts about its image.
    pub image: ImageFacts,
    /// Its root directory as named by the caller.
    pub(crate) rootfs: PathBuf,
    pub(crate) process: ContainerProcess,
    pub(crate) namespace: MountNamespace,
    device_cgroup: Option<DeviceCgroup>,
    /// How the image finds libraries; None if a program updates its cache.
    pub(crate) loader: Option<Loader>,
    /// The user that its process will have, if it is another one than now.
    pub(crate) user: Option<ProcessUser>,
}

/// The host's ldconfig, the fallback if the image's cache cannot be updated without a program.
const HOST_LDCONFIG: &str = "/sbin/ldconfig";

impl Container {
    /// Finds a container.
    ///
    /// # Errors
    /// `invalid argument` for a pid that is not positive, a root that is not absolute, or an empty path; upstream's
    /// messages for a missing process, root or cgroup.
    pub fn discover(config: ContainerConfig) -> Result<Self> {
        config.check()?;
        let is_here = matches!(config.target, Target::Here { .. });
        let (rootfs, process) = ContainerProcess::find(config.target)?;
        let namespace = process.mount_namespace()?;
        if !namespace.is_containers {
            check_propagation(process.root())?;
        }
        let layout = layout::detect(&config.image, process.root())?;
        let compat_libraries = match config.compat {
            CudaCompatMode::Disabled => Vec::new(),
            _ => compat::libraries(process.root(), &layout.cudart_dir)?,
        };
        let device_cgroup = if config.device_cgroup && !is_here {
            Some(find_device_cgroup(&process)?)
        } else {
            None
        };
        let mut image = ImageFacts {
            layout,
            compat_libraries,
            ldconfig: config.image.ldconfig.on(Path::exists),
        };
        let loader = match image.ldconfig {
            Ldconfig::Auto if config.loader => {
                in_process(process.root(), &mut image, config.compat, is_here)
            }
            Ldconfig::Auto | Ldconfig::Host(_) | Ldconfig::Image(_) => None,
        };
        Ok(Self {
            image,
            rootfs,
            user: config.user,
            process,
            namespace,
            device_cgroup,
            loader,
        })
    }

    /// Returns the device cgroup to change; None with the option `no-cgroups`.
    pub fn device_cgroup(&self) -> Option<&DeviceCgroup> {
        self.device_cgroup.as_ref()
    }

    /// Opens the directory of the device cgroup: in the caller's /sys, or below the container's root if the caller
    /// works inside it.
    pub(crate) fn open_device_cgroup(&self, cgroup: &DeviceCgroup) -> Result<OwnedFd> {
        let standalone = self.process.is_standalone();
        let base = standalone.then(|| (self.process.root(), self.rootfs()));
        cgroup::open_directory(cgroup, base)
    }

    /// Returns the user and group that own the container's files: its root user, mapped by its user namespace.
    pub fn owner(&self) -> (u32, u32) {
        self.process.owner()
    }

    /// Returns the container's root directory as named by the caller.
    pub(crate) fn rootfs(&self) -> &Path {
        &self.rootfs
    }
}

/// Checks that in the caller's own mount namespace nothing will be mounted outside the container's root: a chroot often
/// has the host's /dev, /proc and /run, and a tmpfs that appears on the host's /proc/driver/nvidia hides its GPUs. These
/// mounts are the user's, so they are not changed.
fn check_propagation(root: &RootDir) -> Result<()> {
    let failed = |errno| Error::system("stat of the container's root failed", errno);
    let rootfs = inroot::name_of(root.as_fd()).map_err(failed)?;
    let points = mountinfo::leaking(&own_mountinfo()?, &rootfs);
    let Some(first) = points.first() else {
        return Ok(());
    };
    let cause = format!(
        "it is shared with mounts outside {}, where the driver's mounts would appear too",
        rootfs.display()
    );
    let error = Error::fault(ErrorKind::InvalidArgument, first.display(), cause);
    let repair = points
        .iter()
        .map(|point| format!("mount --make-rslave {}", point.display()));
    Err(error.hint(repair.collect::<Vec<_>>().join(" && ")))
}

fn find_device_cgroup(process: &ContainerProcess) -> Result<DeviceCgroup> {
    // The cgroup's mount point depends on which side opens it: us, or the container.
    let mountinfo = if process.is_standalone() {
        process.read("mountinfo")?
    } else {
        own_mountinfo()?
    };
    cgroup::locate(&process.read("cgroup")?, &mountinfo)
}

fn own_mountinfo() -> Result<Vec<u8>> {
    let path = "/proc/thread-self/mountinfo";
    read_file::read_path(path).map_err(|errno| Error::file("open failed", path, errno))
}

impl ContainerConfig {
    /// Checks everything that does not require access to the container.
    ///
    /// # Errors
    /// `invalid argument` for a pid that is not positive, a root that is not absolute, or an empty path.
    pub fn check(&self) -> Result<()> {
        let empty = |path: &Option<PathBuf>| {
            path.as_ref()
                .is_some_and(|path| path.as_os_str().is_empty())
        };
        let image = &self.image;
        let dirs = [
            &image.bins_dir,
            &image.libs_dir,
            &image.libs32_dir,
            &image.cudart_dir,
        ];
        let no_target = match &self.target {
            Target::Process { pid, rootfs } | Target::Inside { pid, rootfs } => {
                *pid <= 0 || !rootfs.is_absolute()
            }
            Target::Parent { rootfs } => !rootfs.is_absolute(),
            Target::Here { .. } => false,
        };
        if no_target || dirs.into_iter().any(empty) || image.ldconfig.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "invalid argument"));
        }
        Ok(())
    }
}

/// Selects the builtin ldconfig if it can update the cache, or else the host's ldconfig.
fn in_process(
    root: &RootDir,
    image: &mut ImageFacts,
    compat: CudaCompatMode,
    is_hook: bool,
) -> Option<Loader> {
    let mut directories: Vec<_> = match compat {
        CudaCompatMode::Ldconfig => image
            .compat_libraries
            .iter()
            .map(ContainerPath::parent)
            .collect(),
        _ => Vec::new(),
    };
    directories.dedup();
    directories.extend([
        image.layout.libs_dir.clone(),
        image.layout.libs32_dir.clone(),
    ]);
    match judge::look(root, &directories, is_hook) {
        Ok(loader) => Some(loader),
        Err(reason) => {
            log::info!("using {HOST_LDCONFIG} of the host, not the builtin ldconfig: {reason}");
            image.ldconfig = Ldconfig::Host(HOST_LDCONFIG.into());
            None
        }
    }
}
