//! Decides what a container gets: a flat, ordered list of steps, plain data.
//!
//! Planning is pure. A step needs no other step's result, and its paths are lexical; only [`apply`](crate::apply) turns
//! them into descriptors. A plan can be printed (`configure --dry-run`), compared in tests, or carried out.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::container::ContainerFacts;
pub use crate::container::Ldconfig;
use crate::host::{DeviceNode, DeviceNumber, DriverInfo};
use crate::options::ContainerOptions;
use crate::path::{ContainerPath, HostPath};

mod device;
mod driver;
pub(crate) mod profile;

pub use device::{device, imex_channel, mig_access, mig_caps, mig_global};
pub use driver::driver;

/// Where the driver's part of procfs is.
const PROC_DRIVER: &str = "/proc/driver/nvidia";

/// Ordered steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Plan {
    /// In the order in which they are carried out.
    pub steps: Vec<Step>,
}

/// One thing done to a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Mount a tmpfs that already holds some files.
    MountTmpfs {
        /// Mount point.
        at: ContainerPath,
        /// Permission bits of its root.
        mode: u32,
        /// Make the mount point if it is missing, instead of failing.
        create: bool,
        /// What is in it when it appears.
        files: Vec<TmpfsFile>,
    },
    /// Bind a file or directory, restricted as its kind demands.
    Bind {
        /// What is bound.
        source: Source,
        /// Mount point; made with the type and mode of the source if missing.
        at: ContainerPath,
        /// What sort of thing it is: decides the mount's attributes and the checks on the source.
        kind: BindKind,
    },
    /// Bind a device node after checking its number.
    BindDevice {
        /// The node below the driver root.
        source: HostPath,
        /// The number it must have.
        number: DeviceNumber,
        /// Mount point.
        at: ContainerPath,
    },
    /// Create a symbolic link unless something of that name is there.
    Symlink {
        /// The link.
        at: ContainerPath,
        /// Its text.
        target: PathBuf,
    },
    /// Make a GPU visible to EGL through the application profile.
    ShowInProfile {
        /// Directory of the profile.
        directory: ContainerPath,
        /// Minor number of the GPU.
        minor: u32,
    },
    /// Let the container's cgroup open a character device for reading and writing.
    AllowDevice {
        /// The device.
        number: DeviceNumber,
    },
    /// Tell the container's dynamic loader of the libraries.
    UpdateLdCache {
        /// The program that does it in the container's root, if one does.
        ldconfig: Ldconfig,
        /// Directories for its command line, or to be taken for such.
        directories: Vec<ContainerPath>,
    },
}

/// A file of a new tmpfs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TmpfsFile {
    /// Its name.
    pub name: String,
    /// Permission bits.
    pub mode: u32,
    /// Its text.
    pub content: String,
}

/// Where the source of a bind mount is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Below the driver root.
    Host(HostPath),
    /// In the image itself (CUDA compatibility libraries).
    Image(ContainerPath),
}

/// What sort of thing is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindKind {
    /// A library, program, firmware or driver-store file: read-only, no devices, no set-uid.
    File,
    /// A socket or the MPS directory: no devices, no set-uid, no programs; read-only unless it is a directory.
    Ipc,
    /// Something of procfs: read-only, no devices, no set-uid, no programs.
    Proc,
    /// A directory of device nodes: read-only, no set-uid, no programs.
    DeviceDirectory,
}

impl Plan {
    /// Appends another plan's steps; a step that is there already is not repeated.
    pub fn append(&mut self, other: Self) {
        self.steps.extend(other.steps);
        let mut seen = HashSet::with_capacity(self.steps.len());
        let keep: Vec<bool> = self.steps.iter().map(|step| seen.insert(step)).collect();
        let mut keep = keep.into_iter();
        self.steps.retain(|_| keep.next().unwrap_or(true));
    }
}

impl FromIterator<Plan> for Plan {
    /// One plan of several, each step once.
    fn from_iter<T: IntoIterator<Item = Plan>>(plans: T) -> Self {
        let mut all = Self {
            steps: plans.into_iter().flat_map(|plan| plan.steps).collect(),
        };
        all.append(Self::default());
        all
    }
}

/// Plans the update of the container's ld.so.cache.
pub fn ldcache(driver: &DriverInfo, container: &ContainerFacts) -> Plan {
    let layout = &container.layout;
    let mut directories = driver::compat_directories(driver, container);
    directories.extend([layout.libs_dir.clone(), layout.libs32_dir.clone()]);
    Plan {
        steps: vec![Step::UpdateLdCache {
            ldconfig: container.ldconfig.clone(),
            directories,
        }],
    }
}

/// A device's node, and the right to open it.
fn device_steps(device: &DeviceNode, options: ContainerOptions, plan: &mut Plan) {
    if !options.contains(ContainerOptions::NO_DEVBIND) {
        plan.steps.push(Step::BindDevice {
            source: device.path.clone(),
            number: device.number,
            at: ContainerPath::from(&device.path),
        });
    }
    if !options.contains(ContainerOptions::NO_CGROUPS) {
        plan.steps.push(Step::AllowDevice {
            number: device.number,
        });
    }
}

impl fmt::Display for Plan {
    /// One step a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MountTmpfs {
                at, mode, files, ..
            } => {
                write!(f, "mount tmpfs (mode {mode:o}) at {at}")?;
                let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
                if names.is_empty() {
                    Ok(())
                } else {
                    write!(f, " with {}", names.join(", "))
                }
            }
            Self::Bind {
                source: Source::Host(source),
                at,
                kind,
            } => write!(f, "bind {kind} {source} at {at}"),
            Self::Bind {
                source: Source::Image(source),
                at,
                kind,
            } => {
                write!(f, "bind {kind} {source} (of the image) at {at}")
            }
            Self::BindDevice { source, number, at } => {
                write!(f, "bind device {source} ({number}) at {at}")
            }
            Self::Symlink { at, target } => write!(f, "link {at} to {}", target.display()),
            Self::ShowInProfile { directory, minor } => {
                write!(f, "show GPU minor {minor} in {directory}")
            }
            Self::AllowDevice { number } => write!(f, "allow device c {number} rw"),
            Self::UpdateLdCache {
                ldconfig,
                directories,
            } => {
                match ldconfig {
                    Ldconfig::Host(path) => {
                        write!(f, "run ldconfig {} (of the host) for", path.display())?;
                    }
                    Ldconfig::Image(path) => write!(f, "run ldconfig {path} (of the image) for")?,
                    Ldconfig::Builtin => f.write_str("update ld.so.cache (builtin) for")?,
                }
                directories
                    .iter()
                    .try_for_each(|directory| write!(f, " {directory}"))
            }
        }
    }
}

impl fmt::Display for BindKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Ipc => "socket",
            Self::Proc => "procfs",
            Self::DeviceDirectory => "devices",
        })
    }
}

#[cfg(test)]
mod tests;
