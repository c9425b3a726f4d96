//! Discovers the container: its process, namespaces, root, layout and device cgroup, reading only.
//!
//! The host names the container by a process and a root directory; everything below that root belongs to the image
//! and is hostile, so it is read through descriptors resolved inside the root.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::inroot::RootDir;
use crate::ldcache::judge::{self, Loader};
use crate::options::CudaCompatMode;
use crate::path::ContainerPath;
use crate::read_file;
use crate::request::ImageOptions;

pub(crate) mod cgroup;
mod compat;
mod layout;
mod process;

pub use cgroup::DeviceCgroup;
pub(crate) use process::{MountNamespace, Process};

/// Which container is meant, and how it is reached.
#[derive(Debug)]
pub enum Target {
    /// The container of a process that the caller's own /proc names: an engine's hook, or `--pid`.
    Process {
        /// Any process that is in its mount namespace.
        pid: i32,
        /// Its root directory, absolute, as that namespace names it.
        rootfs: PathBuf,
    },
    /// The container of a process that the /proc below its root names: the caller sees its file systems already.
    Inside {
        /// Any process that is in its mount namespace.
        pid: i32,
        /// Its root directory, absolute.
        rootfs: PathBuf,
    },
    /// The same for the process that started the caller.
    Parent {
        /// Its root directory, absolute.
        rootfs: PathBuf,
    },
    /// The container in whose mount namespace the caller is: a createContainer hook. There is no process to be found,
    /// no namespace to be entered, and no cgroup to be changed.
    Here {
        /// Its root directory.
        root: OwnedFd,
    },
}

/// What the caller says about a container.
#[derive(Debug)]
pub struct ContainerConfig {
    /// Which it is.
    pub target: Target,
    /// What is known of its image.
    pub image: ImageOptions,
    /// How its CUDA compatibility libraries are used, and so whether they are looked for.
    pub compat: CudaCompatMode,
    /// Whether its device cgroup is looked for.
    pub device_cgroup: bool,
}

/// Where things go in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Programs.
    pub bins_dir: ContainerPath,
    /// Native libraries.
    pub libs_dir: ContainerPath,
    /// 32-bit libraries.
    pub libs32_dir: ContainerPath,
    /// Where the image keeps CUDA.
    pub cudart_dir: ContainerPath,
}

/// Which device cgroup a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CgroupVersion {
    /// The `devices` hierarchy: rules are written to files.
    V1,
    /// The unified hierarchy: rules are BPF programs.
    V2,
}

/// What updates the loader's cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ldconfig {
    /// The host's, from this path in the caller's root.
    Host(PathBuf),
    /// The image's own.
    Image(ContainerPath),
    /// No program: the cache is altered as ldconfig would.
    Builtin,
}

/// What an image says about itself: plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFacts {
    /// Where things go.
    pub layout: Layout,
    /// Its CUDA compatibility libraries, if they were looked for: real paths.
    pub compat_libraries: Vec<ContainerPath>,
    /// What updates its loader's cache.
    pub ldconfig: Ldconfig,
}

/// A container that was found, with the descriptors that pin it.
#[derive(Debug)]
pub struct Container {
    /// What was found in its image.
    pub image: ImageFacts,
    /// Its root directory as the caller named it.
    pub(crate) rootfs: PathBuf,
    pub(crate) process: Process,
    pub(crate) namespace: MountNamespace,
    device_cgroup: Option<DeviceCgroup>,
    /// How the image finds libraries; only known where no program updates its cache.
    pub(crate) loader: Option<Loader>,
}

/// The host's ldconfig, which runs where the image's cache cannot be updated without a program.
const HOST_LDCONFIG: &str = "/sbin/ldconfig";
/// The words for no program where that is safe. `builtin` is the older one; those with an @ are for runtimes that put one
/// before any value. A program of such a name is `./auto`.
const AUTOMATIC: [&str; 4] = ["auto", "@auto", "builtin", "@builtin"];

impl Container {
    /// Finds a container.
    ///
    /// # Errors
    /// `invalid argument` for a pid that is not positive, a root that is not absolute, or an empty path; upstream's
    /// texts for a process, root or cgroup that is not there.
    pub fn discover(config: ContainerConfig) -> Result<Self> {
        config.check()?;
        let is_here = matches!(config.target, Target::Here { .. });
        let (rootfs, process) = Process::find(config.target)?;
        let namespace = process.mount_namespace()?;
        let layout = layout::detect(&config.image, process.root())?;
        let compat_libraries = match config.compat {
            CudaCompatMode::Disabled => Vec::new(),
            _ => compat::libraries(process.root(), &layout.cudart_dir)?,
        };
        let device_cgroup = match config.device_cgroup && !is_here {
            true => Some(find_device_cgroup(&process)?),
            false => None,
        };
        let ldconfig = match &config.image.ldconfig {
            None => Ldconfig::Builtin,
            Some(path) => parse_ldconfig(path),
        };
        let mut image = ImageFacts {
            layout,
            compat_libraries,
            ldconfig,
        };
        let loader = match image.ldconfig {
            Ldconfig::Builtin => in_process(process.root(), &mut image, config.compat),
            Ldconfig::Host(_) | Ldconfig::Image(_) => None,
        };
        Ok(Self {
            image,
            rootfs,
            process,
            namespace,
            device_cgroup,
            loader,
        })
    }

    /// The device cgroup whose rules admit devices; none with the option `no-cgroups`.
    pub fn device_cgroup(&self) -> Option<&DeviceCgroup> {
        self.device_cgroup.as_ref()
    }

    /// Opens the directory of the device cgroup: in the caller's /sys, or below the container's root where the
    /// caller works inside it.
    pub(crate) fn open_device_cgroup(&self, cgroup: &DeviceCgroup) -> Result<OwnedFd> {
        let standalone = self.process.is_standalone();
        let base = standalone.then(|| (self.process.root(), self.rootfs()));
        cgroup::open_directory(cgroup, base)
    }

    /// User and group that the container's files belong to: its root, as its user namespace maps it.
    pub fn owner(&self) -> (u32, u32) {
        self.process.owner()
    }

    /// The container's root directory as the caller named it.
    pub fn rootfs(&self) -> &std::path::Path {
        &self.rootfs
    }
}

fn find_device_cgroup(process: &Process) -> Result<DeviceCgroup> {
    // Below which mount point the cgroup is found is a matter of whoever opens it: us, or the container.
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
    /// Checks what can be checked without looking at the container.
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
        let no_ldconfig = image
            .ldconfig
            .as_ref()
            .is_some_and(|path| path.is_empty() || path == "@");
        let no_target = match &self.target {
            Target::Process { pid, rootfs } | Target::Inside { pid, rootfs } => {
                *pid <= 0 || !rootfs.is_absolute()
            }
            Target::Parent { rootfs } => !rootfs.is_absolute(),
            Target::Here { .. } => false,
        };
        if no_target || dirs.into_iter().any(empty) || no_ldconfig {
            return Err(Error::new(ErrorKind::InvalidArgument, "invalid argument"));
        }
        Ok(())
    }
}

/// The cache is altered in this process if it can be, or else by the host's ldconfig.
fn in_process(root: &RootDir, image: &mut ImageFacts, compat: CudaCompatMode) -> Option<Loader> {
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
    match judge::look(root, &directories) {
        Ok(loader) => Some(loader),
        Err(reason) => {
            log::info!("using {HOST_LDCONFIG} of the host, not the builtin ldconfig: {reason}");
            image.ldconfig = Ldconfig::Host(HOST_LDCONFIG.into());
            None
        }
    }
}

fn parse_ldconfig(path: &OsString) -> Ldconfig {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    if AUTOMATIC.iter().any(|word| path == word) {
        return Ldconfig::Builtin;
    }
    match path.as_bytes().strip_prefix(b"@") {
        Some(host) => Ldconfig::Host(OsString::from_vec(host.to_vec()).into()),
        None => Ldconfig::Image(ContainerPath::new(path)),
    }
}
