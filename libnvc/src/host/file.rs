//! Describes the driver's files: class, capability and place in the container.
//!
//! Discovery knows why it looked for a file. That knowledge stays with the file, so that no later stage guesses it from
//! the name.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Abi;
use crate::capability::Capability;
use crate::path::{ContainerPath, HostPath};

/// The class of a file, which decides its mount attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileClass {
    /// A shared library, or another file that a loader maps, such as those of a WSL driver store.
    Library,
    /// A module that the X server loads.
    XModule,
    /// A program.
    Program,
    /// Firmware that the kernel module reads.
    Firmware,
    /// A configuration file, such as an ICD.
    Config,
    /// Data that a library reads.
    Data,
    /// A daemon's socket, or a directory with sockets.
    Socket,
    /// A directory of device nodes.
    DeviceDir,
    /// A directory of data.
    DataDir,
}

/// A file of the driver below the driver root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DriverFile {
    /// Its path with links resolved.
    pub path: HostPath,
    /// Its class.
    pub class: FileClass,
    /// The ABI, for a library.
    pub abi: Abi,
    /// The capability it belongs to; every container gets a file without one.
    pub capability: Option<Capability>,
    /// Its path in a container, if it differs from the host's.
    pub at: Option<ContainerPath>,
    /// Links that programs expect.
    pub links: Vec<FileLink>,
    /// File names of the driver's other libraries that it needs.
    #[serde(skip)]
    pub needs: Vec<String>,
    /// The libraries that it names by absolute paths, if it is a manifest.
    pub names: Vec<NamedLibrary>,
}

/// A library that a manifest names by an absolute path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NamedLibrary {
    /// That path, which a program will open in the container.
    pub at: ContainerPath,
    /// The file to which it leads on the host.
    pub library: HostPath,
}

/// A symbolic link beside a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FileLink {
    /// Its path, relative to the file's directory.
    pub name: PathBuf,
    /// Its target.
    pub target: PathBuf,
}

impl DriverFile {
    /// Describes a native file that every container gets.
    pub fn new(path: HostPath, class: FileClass) -> Self {
        Self {
            path,
            class,
            abi: Abi::Native,
            capability: None,
            at: None,
            links: Vec::new(),
            needs: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Sets the capability.
    #[must_use]
    pub(crate) fn of(mut self, capability: Option<Capability>) -> Self {
        self.capability = capability;
        self
    }
}
