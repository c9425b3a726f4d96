//! Defines the kinds of intents.
//!
//! Each intent is marked as required or best effort: a read-only /etc must not stop a container because of an
//! application profile, while a missing /dev/nvidia0 must.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::capability::Capabilities;
use crate::container::Layout;
use crate::host::{Daemon, DeviceNumber, DeviceRole, DriverRoot, FileClass, NodeOwner};
use crate::path::{ContainerPath, HostPath};

/// One required result in a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Intent {
    /// Required, or best effort.
    pub need: Need,
    /// The result.
    #[serde(flatten)]
    pub what: What,
}

/// Tells whether a failure is fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// A failure undoes everything.
    Required,
    /// Required, but best effort if nothing may be changed there: on a volume or a read-only root.
    WherePermitted,
    /// A failure undoes only the intent's own effects, with a warning.
    BestEffort,
}

/// The kinds of intents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "intent", rename_all = "kebab-case")]
pub enum What {
    /// A device that can be opened.
    Device(Device),
    /// A bind mount of a file or directory of the host.
    Mount(Mount),
    /// A symlink.
    Link(Link),
    /// Another path of a file of this plan.
    Alias(Alias),
    /// Directories in the dynamic loader's search path.
    LibraryPath(LibraryPath),
    /// Use of the image's CUDA compatibility libraries, if they are newer than the driver.
    CudaCompat(CudaCompat),
    /// A /proc/driver/nvidia without other GPUs than the container's.
    DriverProc(DriverProc),
    /// An application profile that limits EGL to some GPUs.
    EglProfile(EglProfile),
    /// An environment variable.
    Env(Env),
    /// Permissions of a file, if it exists.
    Mode(FileMode),
    /// The sockets of daemons, as far as they exist when the plan is applied.
    Sockets(Sockets),
}

/// A device that the container may open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    /// Path of its node on the host, below the root of the device nodes.
    pub source: HostPath,
    /// The number the node must have.
    pub number: DeviceNumber,
    /// Permissions and owner of the host's node, if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<NodeOwner>,
    /// Path of its node in the container.
    pub at: ContainerPath,
    /// Mount the node into the container.
    pub bind: bool,
    /// Allow reading and writing the device in the device cgroup.
    pub allow: bool,
}

/// A bind mount of a file or directory of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mount {
    /// Its path on the host.
    pub source: HostPath,
    /// Its place in the container.
    pub place: Place,
    /// Its class, which decides the mount's attributes.
    pub class: FileClass,
}

/// A symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// Place of the link.
    pub at: Place,
    /// Its target.
    pub target: PathBuf,
    /// Replace a file or another link of its name. Otherwise a name that is taken stays as it is.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replaces: bool,
}

/// Another path of a file, by which a program opens it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Alias {
    /// That path.
    pub at: ContainerPath,
    /// The file's own place.
    pub of: Place,
}

/// Directories for the dynamic loader's search path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LibraryPath {
    /// In search order.
    pub directories: Vec<Place>,
    /// Search the directories of compatibility libraries first that an earlier hook has configured, unless this plan
    /// has an intent of its own for such libraries.
    #[serde(default, skip_serializing_if = "is_false")]
    pub after_hooks: bool,
}

/// Permissions of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileMode {
    /// Its path.
    pub at: ContainerPath,
    /// Permission bits.
    pub mode: u32,
}

/// The sockets of the driver's daemons. Their paths are not part of a plan: a daemon may start, stop or restart before
/// the container does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sockets {
    /// The driver root, below the root that the plan is applied with.
    pub root: HostPath,
    /// Whose.
    pub daemons: Vec<Daemon>,
}

/// The use of the image's CUDA compatibility libraries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CudaCompat {
    /// Version of the host's driver.
    pub host_driver: String,
    /// Newest CUDA version that the host's driver supports, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cuda: Option<String>,
    /// The image's CUDA directory; None if apply should detect it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<ContainerPath>,
    /// How to use the libraries.
    pub how: CompatUse,
    /// Use only libraries of these capabilities.
    #[serde(serialize_with = "words", deserialize_with = "from_words")]
    pub capabilities: Capabilities,
}

/// How compatibility libraries are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompatUse {
    /// The loader searches their directory first.
    Search,
    /// They are mounted beside the driver's libraries.
    Mount,
    /// The directory of the image's only libcuda is written to the loader's configuration, and searched first.
    Configure,
}

/// The contents of /proc/driver/nvidia.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DriverProc {
    /// Its `params` tells programs not to create device nodes.
    pub no_new_nodes: bool,
    /// The visible devices.
    pub devices: ProcDevices,
}

/// The devices that a container sees in /proc/driver/nvidia.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcDevices {
    /// Those of the machine.
    All,
    /// Those whose nodes the container has when the plan is applied. The process that applies it must be under the
    /// container's device rules.
    Own,
    /// Those of the plan. All intents of a plan add up.
    Planned {
        /// GPUs, by their directory names.
        gpus: Vec<String>,
        /// Capability files.
        capabilities: CapabilityFiles,
    },
}

/// The files of MIG capabilities that a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapabilityFiles {
    /// None.
    None,
    /// These files.
    Some(Vec<HostPath>),
    /// All of the machine's.
    All,
}

/// An application profile that limits EGL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EglProfile {
    /// The visible GPUs.
    pub devices: EglDevices,
}

/// The GPUs that are visible to EGL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EglDevices {
    /// Those whose nodes the container has when the plan is applied.
    Own,
    /// Those with these minor numbers. All intents of a plan add up.
    Planned(Vec<u32>),
}

/// An environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Env {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Place of a file in a container. An empty name means the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// This path, whatever the image.
    At(ContainerPath),
    /// This name in the image's directory of native libraries.
    Library(PathBuf),
    /// This name in the image's directory of 32-bit libraries.
    Library32(PathBuf),
    /// This name in the image's directory of programs.
    Program(PathBuf),
    /// This name in the image's directory of modules of the X server.
    XModule(PathBuf),
}

impl Place {
    /// Returns the same path as on the host.
    pub fn same(path: &HostPath) -> Self {
        Self::At(ContainerPath::from(path))
    }

    /// Returns the path in an image of this layout.
    pub(crate) fn in_image(&self, layout: &Layout) -> ContainerPath {
        let below = |directory: &ContainerPath, name: &Path| {
            if name.as_os_str().is_empty() {
                directory.clone()
            } else {
                directory.join(name)
            }
        };
        match self {
            Self::At(path) => path.clone(),
            Self::Library(name) => below(&layout.libs_dir, name),
            Self::Library32(name) => below(&layout.libs32_dir, name),
            Self::Program(name) => below(&layout.bins_dir, name),
            Self::XModule(name) => below(&layout.x_modules(), name),
        }
    }

    /// Returns the place of another name in the same directory.
    #[must_use]
    pub(crate) fn beside(&self, name: &Path) -> Self {
        let sibling = |path: &Path| path.parent().unwrap_or(Path::new("")).join(name);
        match self {
            Self::At(path) => Self::At(path.parent().join(name)),
            Self::Library(path) => Self::Library(sibling(path)),
            Self::Library32(path) => Self::Library32(sibling(path)),
            Self::Program(path) => Self::Program(sibling(path)),
            Self::XModule(path) => Self::XModule(sibling(path)),
        }
    }
}

impl Intent {
    /// Returns an intent whose failure is fatal.
    pub fn required(what: What) -> Self {
        Self {
            need: Need::Required,
            what,
        }
    }

    /// Returns a best-effort intent.
    pub fn best_effort(what: What) -> Self {
        Self {
            need: Need::BestEffort,
            what,
        }
    }

    /// Plans a mount. Libraries and directories of device nodes are required.
    pub fn mount(source: HostPath, place: Place, class: FileClass) -> Self {
        let what = What::Mount(Mount {
            source,
            place,
            class,
        });
        match class {
            FileClass::Library | FileClass::DeviceDir => Self::required(what),
            FileClass::XModule
            | FileClass::Program
            | FileClass::Firmware
            | FileClass::Config
            | FileClass::Data
            | FileClass::DataDir
            | FileClass::Socket => Self::best_effort(what),
        }
    }

    /// Changes the source, which is below the driver root or the root of the device nodes, to a path of the host.
    pub fn put_below(&mut self, driver_root: &Path, dev_root: &Path) {
        let (source, root) = match &mut self.what {
            // Only firmware keeps its name, by which the kernel opens it. All others are real paths.
            What::Mount(mount) if mount.class == FileClass::Firmware => {
                let root = DriverRoot::open(driver_root).ok();
                let real = root.and_then(|root| root.on_host(&mount.source));
                let named = || HostPath::new(mount.source.below(driver_root));
                mount.source = real.unwrap_or_else(named);
                return;
            }
            What::Mount(mount) => (&mut mount.source, driver_root),
            What::Device(device) => (&mut device.source, dev_root),
            What::Sockets(sockets) => (&mut sockets.root, driver_root),
            _ => return,
        };
        *source = HostPath::new(source.below(root));
    }

    /// Returns true if it needs such a node or file of a capability on the host.
    pub(super) fn needs(&self, is_it: impl Fn(&HostPath) -> bool) -> bool {
        match &self.what {
            What::Device(device) => is_it(&device.source),
            What::DriverProc(shown) => match &shown.devices {
                ProcDevices::Planned {
                    capabilities: CapabilityFiles::Some(files),
                    ..
                } => files.iter().any(is_it),
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns the environment variable that tells other runtimes not to touch the container.
    pub fn void() -> Self {
        Self::required(What::Env(Env {
            name: "NVIDIA_VISIBLE_DEVICES".into(),
            value: "void".into(),
        }))
    }
}

impl DeviceRole {
    /// Returns whether the device is required or best effort.
    pub(super) fn need(self) -> Need {
        match self {
            Self::Control | Self::Uvm | Self::Dxg => Need::Required,
            Self::UvmTools | Self::Modeset => Need::BestEffort,
        }
    }
}

impl EglProfile {
    /// Makes the planned GPUs of another one visible too. Returns false if one of them is not about planned GPUs.
    pub(super) fn add(&mut self, more: &Self) -> bool {
        let (EglDevices::Planned(minors), EglDevices::Planned(more)) =
            (&mut self.devices, &more.devices)
        else {
            return false;
        };
        for minor in more {
            if !minors.contains(minor) {
                minors.push(*minor);
            }
        }
        true
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(flag: &bool) -> bool {
    !flag
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

fn from_words<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Capabilities, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    let known = words.iter().map(|word| Capabilities::from_word(word));
    let all: Option<Capabilities> = known.collect();
    all.ok_or_else(|| serde::de::Error::custom("unknown capability"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn firmware_behind_an_absolute_link_is_found_in_its_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("opt/firmware")).unwrap();
        std::fs::create_dir_all(root.join("lib/firmware/nvidia")).unwrap();
        std::fs::write(root.join("opt/firmware/gsp.bin"), "").unwrap();
        let link = root.join("lib/firmware/nvidia/580.1");
        std::os::unix::fs::symlink("/opt/firmware", link).unwrap();
        for (name, real) in [
            ("gsp.bin", "opt/firmware/gsp.bin"),
            ("gone.bin", "lib/firmware/nvidia/580.1/gone.bin"),
        ] {
            let path = HostPath::new("/lib/firmware/nvidia/580.1").join(name);
            let place = Place::At(ContainerPath::from(&path));
            let mut intent = Intent::mount(path, place.clone(), FileClass::Firmware);
            intent.put_below(&root, &root);
            let found = HostPath::new(root.join(real));
            assert_eq!(intent, Intent::mount(found, place, FileClass::Firmware));
        }
    }

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
