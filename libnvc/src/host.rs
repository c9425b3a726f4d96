//! Discovers the driver on the host: what is there, reading only.
//!
//! Everything is looked up below the *driver root* and named relative to it ([`HostPath`]). Facts about the behaviour
//! of upstream come from its tables of names and its selection rules; see docs/differences.md for where we deviate.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::path::HostPath;

// as whom it is asked
mod identity;

// the driver root
mod realpath;
mod root;

// its files
mod arch;
pub mod binaries;
pub mod catalogue;
mod everything;
mod file;
pub mod firmware;
pub mod ipc;
mod libraries;

// the kernel's side
pub mod nodes;
pub mod nvcaps;
pub mod procfs;
pub mod wsl;

// its GPUs
pub(crate) mod device;
mod drm;
pub mod monitor;
pub mod query;

// all of it
mod driver;
mod session;
mod survey;

pub use arch::Abi;
pub use device::{DeviceInfo, FailedGpu};
pub use driver::{DriverEnvironment, Unversioned, check};
pub use file::{DriverFile, FileClass, FileLink};
pub use identity::Identity;
pub use libraries::{DEFAULT_LDCACHE, LibraryCandidates};
pub use nodes::{DeviceRole, SharedDevice};
pub use root::DriverRoot;
pub use session::{DriverConfig, DriverSession};
pub use survey::{
    Content, GlobalGrant, Grants, Host, MigGrant, SearchPaths, Wants, survey as discover,
};

/// The SONAME of a library; none if it has none, or is no library.
pub fn soname(library: std::fs::File) -> Option<String> {
    let library = crate::elf::Library::open(library).ok()?;
    String::from_utf8(library.soname().ok()??).ok()
}

/// The directories that a loader's cache names, in the order in which they come; none for bytes of another format.
pub fn cached_directories(cache: &[u8]) -> Vec<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let listing = crate::ldcache::listing::Listing::parse(cache);
    let directories = listing.as_ref().map(|listing| listing.directories());
    let directories = directories.ok().and_then(Result::ok).unwrap_or_default();
    let path = |bytes: &[u8]| std::path::PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
    directories
        .iter()
        .map(|directory| path(directory.path))
        .collect()
}

/// Major number of the NVIDIA control and GPU devices (Linux, `Documentation/admin-guide/devices.txt`).
pub const NVIDIA_MAJOR: u32 = 195;

/// A device's number, as `st_rdev` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNumber {
    /// The driver's number.
    pub major: u32,
    /// The device's number within the driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// The number in `st_rdev`.
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
    /// Where its node is.
    pub path: HostPath,
    /// The number the node must have.
    pub number: DeviceNumber,
    /// Permissions and owner of the node, if it was looked at.
    pub owner: Option<NodeOwner>,
}

/// Permissions and owner of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct NodeOwner {
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl NodeOwner {
    /// What a `stat` says.
    pub(crate) fn of(stat: &nix::sys::stat::FileStat) -> Self {
        Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        }
    }
}

impl DeviceNode {
    /// A node that was not looked at.
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

/// The driver's files, sockets and common devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// The driver's versions.
    pub versions: DriverVersions,
    /// Programs, libraries, firmware and sockets: real files, in the order of the catalogue.
    pub files: Vec<DriverFile>,
    /// What graphics needs besides, if all files were asked for.
    pub graphics: Vec<DriverFile>,
    /// Links that graphics needs, if all files were asked for.
    pub graphics_links: Vec<HostLink>,
    /// Devices that all GPUs share.
    pub devices: Vec<SharedDevice>,
    /// Set under WSL2, where the driver store replaces most of the above.
    pub wsl: Option<WslDriver>,
}

impl DriverInfo {
    /// The files of one class.
    pub fn of_class(&self, class: FileClass) -> impl Iterator<Item = &DriverFile> {
        self.files.iter().filter(move |file| file.class == class)
    }

    /// The libraries of one set.
    pub fn libraries(&self, abi: Abi) -> impl Iterator<Item = &DriverFile> {
        let libraries = self.of_class(FileClass::Library);
        libraries.filter(move |file| file.abi == abi)
    }
}

/// A small text file of /proc/driver/nvidia.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcFile {
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
    /// Position in NVML's order, counting GPUs that were skipped: what `--device N` means.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// `GPU-…`.
    pub uuid: String,
    /// PCI address, `domain:bus:device.0` with eight, two and two hexadecimal digits.
    pub busid: String,
    /// Compute capability, e.g. `9.0`.
    pub arch: String,
    /// Brand as the requirement language names it.
    pub brand: String,
    /// Minor number, the N of /dev/nvidiaN; zero under WSL2.
    pub minor: u32,
    /// The device node; none under WSL2.
    pub node: Option<DeviceNode>,
    /// Its nodes for displays and rendering, if they were asked for.
    pub drm_nodes: Vec<DeviceNode>,
    /// Links to those by its address, if they were asked for.
    pub drm_links: Vec<HostLink>,
    /// Its directory in /proc/driver/nvidia/gpus, if there.
    pub proc_dir: Option<HostPath>,
    /// Whether the driver knows MIG on this GPU.
    pub mig_capable: bool,
    /// Directory of its MIG capabilities; none under WSL2.
    pub mig_caps_path: Option<HostPath>,
    /// MIG devices; empty unless MIG mode is on.
    pub mig_devices: Vec<MigDevice>,
}

/// A symbolic link of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLink {
    /// The link.
    pub at: HostPath,
    /// Its text.
    pub target: PathBuf,
}

/// One MIG device: a compute instance of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigDevice {
    /// NVML's slot for it, free slots counted: the M of `--device N:M`, as nvidia-smi numbers them.
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
}

/// One capability of a MIG device: the right to use a GPU instance or a compute instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigAccess {
    /// Its file in /proc/driver/nvidia/capabilities.
    pub file: HostPath,
    /// Its device node, where the driver has such.
    pub node: Option<DeviceNode>,
}
