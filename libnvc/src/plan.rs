//! Decides what a container gets: a flat, ordered list of steps, plain data.
//!
//! Planning is pure. A step needs no other step's result, and its paths are lexical; only [`apply`](crate::apply) turns
//! them into descriptors. A plan can be printed (`configure --dry-run`), compared in tests, or carried out.

use std::path::PathBuf;

use serde::Serialize;

use crate::host::DeviceNumber;
use crate::path::{ContainerPath, HostPath};

/// Ordered steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Plan {
    /// In the order in which they are carried out.
    pub steps: Vec<Step>,
}

/// One thing done to a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Mount a tmpfs that already holds some files.
    MountTmpfs {
        /// Mount point.
        at: ContainerPath,
        /// Permission bits of its root.
        mode: u32,
        /// Make the mount point (mode 0555) if it is missing, instead of failing.
        create: bool,
        /// What is in it when it appears.
        files: Vec<TmpfsFile>,
    },
    /// Bind a file or directory read-only or otherwise restricted.
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
    /// Make GPUs visible to EGL through the application profile.
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
    /// Run ldconfig in the container's root.
    UpdateLdCache {
        /// The program.
        ldconfig: Ldconfig,
        /// Directories for its command line.
        directories: Vec<ContainerPath>,
    },
}

/// A file of a new tmpfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TmpfsFile {
    /// Its name.
    pub name: String,
    /// Permission bits.
    pub mode: u32,
    /// Its text.
    pub content: String,
}

/// Where the source of a bind mount is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Below the driver root.
    Host(HostPath),
    /// In the image itself (CUDA compatibility libraries).
    Image(ContainerPath),
}

/// What sort of thing is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindKind {
    /// A library, program, firmware or driver-store file: read-only, no devices, no set-uid.
    File,
    /// A socket or the MPS directory: no devices, no set-uid, no programs.
    Ipc,
    /// Something of procfs: read-only, no devices, no set-uid, no programs.
    Proc,
    /// A directory of device nodes: no set-uid, no programs.
    DeviceDirectory,
}

/// Which ldconfig runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ldconfig {
    /// The host's, from this path in the caller's root.
    Host(PathBuf),
    /// The image's own.
    Image(ContainerPath),
}
