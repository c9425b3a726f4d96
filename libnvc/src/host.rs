//! Discovers the driver on the host, reading only.
//!
//! All lookups start at the *driver root*, and paths are relative to it ([`HostPath`]). Facts about upstream's
//! behaviour come from its name tables and selection rules; docs/differences.md lists our deviations.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::path::HostPath;

// the user that the query runs as
mod identity;

// the driver root
mod realpath;
mod root;
mod unforged;

// its files
mod arch;
pub mod catalogue;
mod file;
mod ipc;
pub mod search;

// the kernel's side
mod imex;
pub(crate) mod majors;
pub mod nodes;
pub mod numbers;
pub mod nvcaps;
pub mod procfs;
pub(crate) mod wsl;

// its GPUs
mod cuda;
pub(crate) mod device;
pub mod drm;
pub mod events;
mod integrated;
mod inventory;
mod listing;
pub mod monitor;
pub mod query;

// all of it
mod asked;
mod session;

pub use arch::Abi;
pub use asked::GpusAsked;
pub use cuda::{CudaFacts, cuda_facts};
pub use device::{DeviceInfo, FailedGpu};
pub use file::{DriverFile, FileClass, FileLink, NamedLibrary};
pub(crate) use identity::mapped;
pub(crate) use identity::overflow_uid;
pub use identity::{Identity, in_user_namespace};
pub(crate) use imex::ImexChannels;
pub use integrated::discrete_gpus;
pub use inventory::Inventory;
pub use ipc::Daemon;
pub(crate) use ipc::sockets;
pub use listing::ListedGpu;
pub use majors::major_of;
pub use nodes::{DeviceRole, SharedDevice};
pub use numbers::CharDrivers;
pub use root::DriverRoot;
pub use session::{DriverConfig, DriverSession};
pub(crate) use unforged::FORGED;
pub use wsl::is_wsl;

/// Major number of the NVIDIA control and GPU devices (Linux, `Documentation/admin-guide/devices.txt`).
pub const NVIDIA_MAJOR: u32 = 195;
/// Minor numbers of two of them; a GPU has its own.
pub(crate) const CONTROL_MINOR: u32 = 255;
pub(crate) const MODESET_MINOR: u32 = 254;

/// A device number, as in `st_rdev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNumber {
    /// The driver's major number.
    pub major: u32,
    /// The device's minor number.
    pub minor: u32,
}

impl DeviceNumber {
    /// Converts the number in `st_rdev`.
    pub fn from_rdev(rdev: u64) -> Self {
        Self {
            major: libc::major(rdev),
            minor: libc::minor(rdev),
        }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A character device below the driver root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceNode {
    /// Path of its node.
    pub path: HostPath,
    /// The number that the node must have.
    pub number: DeviceNumber,
    /// Permissions and owner of the node, if they were read.
    pub owner: Option<NodeOwner>,
}

/// Permissions and owner of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeOwner {
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl NodeOwner {
    /// Takes them from the result of stat(2).
    pub(crate) fn of(stat: &nix::sys::stat::FileStat) -> Self {
        Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        }
    }
}

impl DeviceNode {
    /// Describes a node without reading its permissions.
    pub fn new(path: impl AsRef<std::path::Path>, major: u32, minor: u32) -> Self {
        Self {
            path: HostPath::new(path),
            number: DeviceNumber { major, minor },
            owner: None,
        }
    }
}

/// The driver's versions, as NVML reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverVersions {
    /// Version of the kernel driver, e.g. `535.261.03`.
    pub driver: String,
    /// Newest CUDA version it supports, e.g. `12.2`.
    pub cuda: String,
}

/// The driver's files, sockets and shared devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// The driver's versions.
    pub versions: DriverVersions,
    /// Programs, libraries, firmware and sockets: regular files in catalogue order.
    pub files: Vec<DriverFile>,
    /// Additional files for graphics, if all files were requested.
    pub graphics: Vec<DriverFile>,
    /// Directories with native libraries of the driver's version, best first.
    pub directories: Vec<HostPath>,
    /// Daemons whose sockets are looked up when a container starts, if all files were requested.
    pub daemons: Vec<Daemon>,
    /// Programs that only the caller's `PATH` led to.
    #[serde(skip)]
    pub by_path: Vec<HostPath>,
    /// Devices that all GPUs share.
    pub devices: Vec<SharedDevice>,
    /// Set under WSL2, where the driver store replaces most of the above.
    pub wsl: Option<WslDriver>,
}

impl DriverInfo {
    /// Returns the files of one class.
    pub fn of_class(&self, class: FileClass) -> impl Iterator<Item = &DriverFile> {
        self.files.iter().filter(move |file| file.class == class)
    }

    /// Returns the libraries of one ABI.
    pub fn libraries(&self, abi: Abi) -> impl Iterator<Item = &DriverFile> {
        let libraries = self.of_class(FileClass::Library);
        libraries.filter(move |file| file.abi == abi)
    }
}

/// A small text file of /proc/driver/nvidia.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ProcFile {
    /// Its name: `params`, `version` or `registry`.
    pub name: String,
    /// Permission bits.
    pub mode: u32,
    /// Its text.
    pub content: String,
}

/// The driver store of a WSL2 host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WslDriver {
    /// The directory that Windows provides.
    pub store: HostPath,
    /// Names of the files in it that containers need.
    pub components: Vec<String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Position in NVML's order, counting skipped GPUs: the N of `--device N`.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// `GPU-…`.
    pub uuid: String,
    /// PCI address, `domain:bus:device.0` with eight, two and two hexadecimal digits.
    pub busid: String,
    /// Compute capability, e.g. `9.0`.
    pub arch: String,
    /// Brand in the words of the requirement language.
    pub brand: String,
    /// Minor number, the N of /dev/nvidiaN; zero under WSL2.
    pub minor: u32,
    /// The device node; None under WSL2.
    pub node: Option<DeviceNode>,
    /// Its DRM nodes, if they were requested.
    pub drm_nodes: Vec<DeviceNode>,
    /// Links to those nodes by PCI address, if they were requested.
    pub drm_links: Vec<HostLink>,
    /// Its directory in /proc/driver/nvidia/gpus, if it exists.
    pub proc_dir: Option<HostPath>,
    /// True if the driver supports MIG on this GPU.
    pub mig_capable: bool,
    /// Directory of its MIG capabilities; None under WSL2.
    pub mig_caps_path: Option<HostPath>,
    /// MIG devices; empty unless MIG mode is on.
    pub mig_devices: Vec<MigDevice>,
}

/// A symbolic link of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLink {
    /// Path of the link.
    pub at: HostPath,
    /// Its target.
    pub target: PathBuf,
}

/// One MIG device: a compute instance of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigDevice {
    /// NVML's slot, counting free slots: the M of `--device N:M`, as in nvidia-smi.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// GPU instance.
    pub gi: u32,
    /// Compute instance.
    pub ci: u32,
    /// Directory of the GPU instance's capability.
    pub gi_caps_path: HostPath,
    /// Directory of the compute instance's capability.
    pub ci_caps_path: HostPath,
    /// True if its profile has the attribute `gfx`; None if NVML did not tell the profile.
    #[serde(skip)]
    pub graphics: Option<bool>,
}

/// One capability of a MIG device: the right to use a GPU instance or a compute instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigAccess {
    /// Its file in /proc/driver/nvidia/capabilities.
    pub file: HostPath,
    /// Its device node, if the driver grants capabilities by device nodes.
    pub node: Option<DeviceNode>,
}
