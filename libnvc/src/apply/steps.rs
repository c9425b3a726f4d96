//! Defines steps: each is one effect on a container, at a fixed path of this image.

use std::path::PathBuf;

use crate::apply::cgroup::WantedDevice;
use crate::apply::replace::NewFile;
use crate::host::{DeviceNumber, FileClass, ProcFile};
use crate::path::{ContainerPath, HostPath};
use crate::plan::Need;

/// One effect on a container.
#[derive(Debug)]
pub(super) struct Step {
    /// The intent that it belongs to, as its index in the plan.
    pub(super) intent: usize,
    /// Required, or best effort.
    pub(super) need: Need,
    /// The effect.
    pub(super) action: Action,
}

/// An effect on a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Mount a tmpfs that already holds some files, or add them to the one of an earlier run.
    MountTmpfs {
        at: ContainerPath,
        mode: u32,
        files: Vec<TmpfsFile>,
    },
    /// Mount a tmpfs with an application profile, or show more GPUs in the one of an earlier run.
    ShowInProfile { at: ContainerPath, minors: Vec<u32> },
    /// Bind a file or directory, restricted as its kind demands.
    Bind {
        source: Source,
        at: ContainerPath,
        kind: BindKind,
    },
    /// Bind a device node after checking its number.
    BindDevice {
        source: HostPath,
        number: DeviceNumber,
        at: ContainerPath,
    },
    /// Create a symlink.
    Symlink {
        at: ContainerPath,
        target: PathBuf,
        /// Replace a file or link of that name; otherwise it stays.
        replaces: bool,
    },
    /// Write a file, in place of one of that name.
    WriteFile {
        directory: ContainerPath,
        file: NewFile,
    },
    /// Mount a file over an existing one, read-only.
    CoverFile { at: ContainerPath, file: TmpfsFile },
    /// Make a tmpfs of this plan read-only.
    Seal { at: ContainerPath },
    /// Change the permissions of a file, if it exists.
    SetMode { at: ContainerPath, mode: u32 },
    /// Let the container's cgroup open a character device for reading and writing.
    AllowDevice {
        device: WantedDevice,
        /// Its node on the host.
        node: HostPath,
    },
    /// Make the container's dynamic loader find libraries.
    UpdateLdCache {
        /// On ldconfig's command line.
        directories: Vec<ContainerPath>,
        /// The number of them, from the start, all of whose libraries come first.
        first: usize,
        /// Searched where the image's configuration or loader has them; others are added to the configuration.
        folders: Vec<ContainerPath>,
    },
}

/// A file of a new tmpfs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TmpfsFile {
    pub(super) name: String,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) content: String,
}

/// Location of a bind mount's source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// Below the driver root.
    Host(HostPath),
    /// In the image itself: a CUDA compatibility library.
    Image(ContainerPath),
}

/// Kind of a bind mount's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BindKind {
    /// A library: read-only, no devices, no set-uid.
    Library,
    /// The same for a program.
    Program,
    /// The same for a file that they read.
    File,
    /// A socket or a directory of sockets: no devices, no set-uid, no programs.
    Ipc,
    /// A procfs file: read-only, no devices, no set-uid, no programs.
    Proc,
    /// A directory of device nodes: no set-uid, no programs.
    DeviceDirectory,
    /// A directory of data: read-only, no devices, no set-uid.
    DataDirectory,
}

impl BindKind {
    /// Returns true for a library, a program, or a file that they read.
    pub(super) fn is_file(self) -> bool {
        matches!(self, Self::Library | Self::Program | Self::File)
    }
}

impl From<FileClass> for BindKind {
    fn from(class: FileClass) -> Self {
        match class {
            FileClass::Library | FileClass::XModule => Self::Library,
            FileClass::Program => Self::Program,
            FileClass::Firmware | FileClass::Config | FileClass::Data => Self::File,
            FileClass::Socket => Self::Ipc,
            FileClass::DeviceDir => Self::DeviceDirectory,
            FileClass::DataDir => Self::DataDirectory,
        }
    }
}

/// Returns the mount of a file or directory of procfs.
pub(super) fn of_proc(path: &HostPath) -> Action {
    Action::Bind {
        source: Source::Host(path.clone()),
        at: ContainerPath::from(path),
        kind: BindKind::Proc,
    }
}

impl From<ProcFile> for TmpfsFile {
    fn from(file: ProcFile) -> Self {
        Self {
            name: file.name,
            mode: file.mode,
            content: file.content,
        }
    }
}
