//! Discovers the container: its process, namespaces, root, layout and device cgroup, reading only.
//!
//! The host names the container by a process and a root directory; everything below that root belongs to the image
//! and is hostile, so it is read through descriptors resolved inside the root.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::inroot::RootDir;
use crate::options::{ContainerOptions, CudaCompatMode};
use crate::path::ContainerPath;
use crate::stream;

pub(crate) mod cgroup;
mod compat;
mod layout;
pub(crate) mod loader;
mod process;

pub use cgroup::DeviceCgroup;
use loader::Loader;
pub(crate) use process::{MountNamespace, Process};

/// What the caller says about a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerConfig {
    /// Its process: any that is in its mount namespace.
    pub pid: i32,
    /// Its root directory, absolute, as that namespace names it.
    pub rootfs: PathBuf,
    /// Where programs go; detected if none.
    pub bins_dir: Option<PathBuf>,
    /// Where native libraries go; detected if none.
    pub libs_dir: Option<PathBuf>,
    /// Where 32-bit libraries go; detected if none.
    pub libs32_dir: Option<PathBuf>,
    /// Where the image keeps CUDA; /usr/local/cuda if none.
    pub cudart_dir: Option<PathBuf>,
    /// Which ldconfig updates its cache: `@/path` on the host, `/path` in the image, or `auto`, which is also the default:
    /// none where the image's cache can be updated without a program, else the host's.
    pub ldconfig: Option<OsString>,
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

/// What planning needs to know of a container: plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFacts {
    /// How it is reached and what it gets.
    pub options: ContainerOptions,
    /// Where things go.
    pub layout: Layout,
    /// CUDA compatibility libraries in the image: real paths.
    pub compat_libraries: Vec<ContainerPath>,
    /// How those are used.
    pub compat_mode: CudaCompatMode,
    /// Which ldconfig updates its cache.
    pub ldconfig: Ldconfig,
}

/// A container that was found, with the descriptors that pin it.
#[derive(Debug)]
pub struct Container {
    /// What planning needs to know.
    pub facts: ContainerFacts,
    /// Its root directory as the caller named it.
    pub(crate) rootfs: PathBuf,
    pub(crate) process: Process,
    pub(crate) namespace: MountNamespace,
    device_cgroup: Option<DeviceCgroup>,
    /// How the image finds libraries; only known where no program updates its cache.
    pub(crate) loader: Option<Loader>,
    /// Files and links that were put into it.
    placed: Mutex<Vec<ContainerPath>>,
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
    pub fn discover(config: &ContainerConfig, options: ContainerOptions) -> Result<Self> {
        let compat_mode = options.checked_cuda_compat()?;
        config.check()?;
        let process = Process::find(config.pid, &config.rootfs, options)?;
        let namespace = process.mount_namespace()?;
        let layout = layout::detect(config, process.root())?;
        let wants_compat =
            options.contains(ContainerOptions::COMPUTE) && compat_mode != CudaCompatMode::Disabled;
        let compat_libraries = if wants_compat {
            compat::libraries(process.root(), &layout.cudart_dir)?
        } else {
            Vec::new()
        };
        let device_cgroup = if options.contains(ContainerOptions::NO_CGROUPS) {
            None
        } else {
            // Below which mount point the cgroup is found is a matter of whoever opens it: us, or the container.
            let mountinfo = if process.is_standalone() {
                process.read("mountinfo")?
            } else {
                own_mountinfo()?
            };
            Some(cgroup::locate(&process.read("cgroup")?, &mountinfo)?)
        };
        let ldconfig = match &config.ldconfig {
            None => Ldconfig::Builtin,
            Some(path) => parse_ldconfig(path),
        };
        let (ldconfig, loader) = match ldconfig {
            Ldconfig::Builtin => {
                let compat = compat_libraries.iter().map(ContainerPath::parent);
                let compat: Vec<_> = match compat_mode {
                    CudaCompatMode::Ldconfig => compat.collect(),
                    _ => Vec::new(),
                };
                let mut directories: Vec<_> = compat.iter().collect();
                directories.dedup();
                directories.extend([&layout.libs_dir, &layout.libs32_dir]);
                in_process(process.root(), &directories)
            }
            program => (program, None),
        };
        Ok(Self {
            facts: ContainerFacts {
                options,
                layout,
                compat_libraries,
                compat_mode,
                ldconfig,
            },
            rootfs: config.rootfs.clone(),
            process,
            namespace,
            device_cgroup,
            loader,
            placed: Mutex::default(),
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

    /// Remembers what was put into the container: a later plan may have to tell the loader.
    pub(crate) fn note_placed(&self, paths: impl Iterator<Item = ContainerPath>) {
        let placed = self.placed.lock();
        placed.unwrap_or_else(PoisonError::into_inner).extend(paths);
    }

    /// What was put into the container.
    pub(crate) fn placed(&self) -> Vec<ContainerPath> {
        let placed = self.placed.lock();
        placed.unwrap_or_else(PoisonError::into_inner).clone()
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

fn own_mountinfo() -> Result<Vec<u8>> {
    let path = "/proc/thread-self/mountinfo";
    stream::read_path(path).map_err(|errno| Error::file("open failed", path, errno))
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
        let dirs = [
            &self.bins_dir,
            &self.libs_dir,
            &self.libs32_dir,
            &self.cudart_dir,
        ];
        let no_ldconfig = self
            .ldconfig
            .as_ref()
            .is_some_and(|path| path.is_empty() || path == "@");
        if self.pid <= 0 || !self.rootfs.is_absolute() || dirs.into_iter().any(empty) || no_ldconfig
        {
            return Err(Error::new(ErrorKind::InvalidArgument, "invalid argument"));
        }
        Ok(())
    }
}

/// The cache is altered in this process if it can be, or else by the host's ldconfig.
fn in_process(root: &RootDir, directories: &[&ContainerPath]) -> (Ldconfig, Option<Loader>) {
    match loader::look(root, directories) {
        Ok(loader) => (Ldconfig::Builtin, Some(loader)),
        Err(reason) => {
            log::info!("using {HOST_LDCONFIG} of the host, not the builtin ldconfig: {reason}");
            (Ldconfig::Host(HOST_LDCONFIG.into()), None)
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
