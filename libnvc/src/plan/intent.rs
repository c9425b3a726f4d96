//! Defines the intents: the eight kinds of things that must be so in a container.
//!
//! Whether a container can do without one is a property of the intent: a read-only /etc must not kill a container for
//! an application profile, a missing /dev/nvidia0 must.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::capability::Capabilities;
use crate::container::Layout;
use crate::host::{DeviceNumber, DeviceRole, FileClass, NodeOwner};
use crate::path::{ContainerPath, HostPath};

/// One thing that must be so in a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Intent {
    /// Whether the container can do without it.
    pub need: Need,
    /// What it is.
    #[serde(flatten)]
    pub what: What,
}

/// Whether a container can do without something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// If it fails, everything is undone.
    Required,
    /// If it fails, only its own effects are undone, with a warning.
    BestEffort,
}

/// The kinds of intents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "intent", rename_all = "kebab-case")]
pub enum What {
    /// A device can be opened.
    Device(Device),
    /// A file or directory of the host is there.
    Mount(Mount),
    /// A symbolic link is there, unless something else of that name is.
    Link(Link),
    /// The dynamic loader knows directories.
    LibraryPath(LibraryPath),
    /// The image's CUDA compatibility libraries are used, if they are newer than the driver.
    CudaCompat(CudaCompat),
    /// /proc/driver/nvidia shows the driver and this container's devices, and nothing of other GPUs.
    DriverProc(DriverProc),
    /// EGL sees some GPUs only.
    EglProfile(EglProfile),
    /// An environment variable is set.
    Env(Env),
}

/// A device that the container can open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Device {
    /// Its node on the host, below the root that has the device nodes.
    pub source: HostPath,
    /// The number the node must have.
    pub number: DeviceNumber,
    /// Permissions and owner of the host's node, if it was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<NodeOwner>,
    /// Its node in the container.
    pub at: ContainerPath,
    /// Whether the node is put into the container.
    pub bind: bool,
    /// Whether the device cgroup admits reading and writing it.
    pub allow: bool,
}

/// A file or directory of the host that is in the container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Mount {
    /// Where it is on the host.
    pub source: HostPath,
    /// Where it is in the container.
    pub place: Place,
    /// What it is: decides the mount's attributes.
    pub class: FileClass,
}

/// A symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Link {
    /// The link.
    pub at: Place,
    /// Its text.
    pub target: PathBuf,
}

/// Directories that the dynamic loader must know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LibraryPath {
    /// In the order in which they are searched.
    pub directories: Vec<Place>,
}

/// The use of the image's CUDA compatibility libraries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CudaCompat {
    /// Version of the host's driver.
    pub host_driver: String,
    /// Newest CUDA version that the host's driver supports, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_cuda: Option<String>,
    /// Where the image keeps CUDA, if that is not for apply to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<ContainerPath>,
    /// How the libraries come into use.
    pub how: CompatUse,
    /// Only libraries of these capabilities are used.
    #[serde(serialize_with = "words")]
    pub capabilities: Capabilities,
}

/// How compatibility libraries come into use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompatUse {
    /// The loader searches their directory first.
    Search,
    /// They are mounted beside the driver's libraries.
    Mount,
}

/// What /proc/driver/nvidia shows. `params` tells programs not to make device nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DriverProc {
    /// GPUs that it shows, by the names of their directories.
    pub gpus: Vec<String>,
    /// Capability files that it shows.
    pub capabilities: CapabilityFiles,
}

/// The files of MIG capabilities that a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapabilityFiles {
    /// None.
    None,
    /// These files.
    Some(Vec<HostPath>),
    /// All of the machine.
    All,
}

/// The GPUs that EGL sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct EglProfile {
    /// Their minor numbers.
    pub minors: Vec<u32>,
}

/// An environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Env {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Where something is in a container. An empty name means the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// At this path, whatever the image is.
    At(ContainerPath),
    /// By this name where the image keeps native libraries.
    Library(PathBuf),
    /// By this name where the image keeps 32-bit libraries.
    Library32(PathBuf),
    /// By this name where the image keeps programs.
    Program(PathBuf),
}

impl Place {
    /// The same path as on the host.
    pub fn same(path: &HostPath) -> Self {
        Self::At(ContainerPath::from(path))
    }

    /// Where this is in an image.
    pub fn in_image(&self, layout: &Layout) -> ContainerPath {
        let below = |directory: &ContainerPath, name: &Path| match name.as_os_str().is_empty() {
            true => directory.clone(),
            false => directory.join(name),
        };
        match self {
            Self::At(path) => path.clone(),
            Self::Library(name) => below(&layout.libs_dir, name),
            Self::Library32(name) => below(&layout.libs32_dir, name),
            Self::Program(name) => below(&layout.bins_dir, name),
        }
    }

    /// Another name in the directory of this place.
    #[must_use]
    pub fn beside(&self, name: &Path) -> Self {
        let sibling = |path: &Path| path.parent().unwrap_or(Path::new("")).join(name);
        match self {
            Self::At(path) => Self::At(path.parent().join(name)),
            Self::Library(path) => Self::Library(sibling(path)),
            Self::Library32(path) => Self::Library32(sibling(path)),
            Self::Program(path) => Self::Program(sibling(path)),
        }
    }

    /// The last component; empty for a directory itself.
    pub fn file_name(&self) -> &OsStr {
        match self {
            Self::At(path) => path.file_name(),
            Self::Library(path) | Self::Library32(path) | Self::Program(path) => {
                path.file_name().unwrap_or_default()
            }
        }
    }
}

impl Intent {
    /// An intent that the container cannot do without.
    pub fn required(what: What) -> Self {
        Self {
            need: Need::Required,
            what,
        }
    }

    /// An intent that the container can do without.
    pub fn best_effort(what: What) -> Self {
        Self {
            need: Need::BestEffort,
            what,
        }
    }

    /// A mount. Libraries and directories of device nodes are required.
    pub fn mount(source: HostPath, place: Place, class: FileClass) -> Self {
        let what = What::Mount(Mount {
            source,
            place,
            class,
        });
        match class {
            FileClass::Library | FileClass::DeviceDir => Self::required(what),
            FileClass::Program
            | FileClass::Firmware
            | FileClass::Config
            | FileClass::Data
            | FileClass::Socket => Self::best_effort(what),
        }
    }

    /// The environment that tells other runtimes to leave the container alone.
    pub fn void() -> Self {
        Self::required(What::Env(Env {
            name: "NVIDIA_VISIBLE_DEVICES".into(),
            value: "void".into(),
        }))
    }
}

impl DeviceRole {
    /// Whether a container can do without the device.
    pub(super) fn need(self) -> Need {
        match self {
            Self::Control | Self::Uvm | Self::Dxg => Need::Required,
            Self::UvmTools | Self::Modeset => Need::BestEffort,
        }
    }
}

impl EglProfile {
    /// Shows more GPUs.
    pub(super) fn add(&mut self, minors: &[u32]) {
        for minor in minors {
            if !self.minors.contains(minor) {
                self.minors.push(*minor);
            }
        }
    }
}

fn words<S: serde::Serializer>(
    capabilities: &Capabilities,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    use crate::capability::Capability;
    let named = Capability::ALL
        .into_iter()
        .filter(|capability| capabilities.include(*capability));
    serializer.collect_seq(named.map(Capability::word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_stay_in_their_directory() {
        let vdpau = Place::Library("vdpau/libvdpau_nvidia.so.1".into());
        assert_eq!(
            vdpau.beside(Path::new("x.so")),
            Place::Library("vdpau/x.so".into())
        );
        assert_eq!(
            Place::Library32("a.so.1".into()).beside(Path::new("gbm/b.so")),
            Place::Library32("gbm/b.so".into())
        );
        assert_eq!(
            Place::At(ContainerPath::new("/opt/a.so.1")).beside(Path::new("a.so")),
            Place::At(ContainerPath::new("/opt/a.so"))
        );
    }
}
