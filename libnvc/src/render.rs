//! Renders plans: as text, as JSON, and as edits of a container's configuration.
//!
//! Every function here is pure: plan in, value out, no I/O.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::host::FileClass;
use crate::path::HostPath;

pub mod cdi;
mod json;
mod text;

pub use json::json;
pub use text::text;

/// The options of a bind mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MountOptions(FileClass);

impl MountOptions {
    /// Returns the options for a file class.
    pub fn of(class: FileClass) -> Self {
        Self(class)
    }

    /// Returns them as in fstab, in upstream's order.
    pub fn words(self) -> &'static [&'static str] {
        match self.0 {
            FileClass::Library
            | FileClass::Program
            | FileClass::Firmware
            | FileClass::Config
            | FileClass::Data => &["ro", "nosuid", "nodev", "rbind", "rprivate"],
            FileClass::Socket => &["nosuid", "nodev", "rbind", "rprivate", "noexec"],
            FileClass::DeviceDir => &["nosuid", "noexec", "rbind", "rprivate"],
        }
    }
}

impl Serialize for MountOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.words())
    }
}

/// Returns a path below a root as a host path.
fn on_host(root: &Path, path: &HostPath) -> PathBuf {
    path.below(root)
}
