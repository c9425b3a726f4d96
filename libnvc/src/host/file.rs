//! Describes the driver's files: what each is, for whom, and where it goes.
//!
//! Discovery knows why it looked for a file. The answer is kept with the file, so that no later stage guesses it from
//! the name.

use std::path::PathBuf;

use serde::Serialize;

use super::Abi;
use crate::capability::Capability;
use crate::path::{ContainerPath, HostPath};

/// What a file is. It decides which attributes its mount has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileClass {
    /// A shared library, or anything else that a loader maps: a file of a WSL driver store.
    Library,
    /// A program.
    Program,
    /// Firmware that the kernel module reads.
    Firmware,
    /// A configuration file, such as an ICD.
    Config,
    /// Data that a library reads.
    Data,
    /// A socket of a daemon, or a directory with sockets.
    Socket,
    /// A directory of device nodes.
    DeviceDir,
}

/// A file of the driver below the driver root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DriverFile {
    /// Where it is, links resolved.
    pub path: HostPath,
    /// What it is.
    pub class: FileClass,
    /// For which programs, if it is a library.
    pub abi: Abi,
    /// The capability it belongs to; a file of none is for every container.
    pub capability: Option<Capability>,
    /// Where it belongs in a container, if that is not the place it has on the host.
    pub at: Option<ContainerPath>,
    /// Links that programs look for.
    pub links: Vec<FileLink>,
}

/// A symbolic link beside a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FileLink {
    /// Its name, relative to the file's directory.
    pub name: PathBuf,
    /// Its text.
    pub target: PathBuf,
}

impl DriverFile {
    /// A native file of a class that every container gets.
    pub fn new(path: HostPath, class: FileClass) -> Self {
        Self {
            path,
            class,
            abi: Abi::Native,
            capability: None,
            at: None,
            links: Vec::new(),
        }
    }

    /// The same for a capability.
    #[must_use]
    pub fn of(mut self, capability: Option<Capability>) -> Self {
        self.capability = capability;
        self
    }
}
