//! Says what a container asks for, and what the administrator wants done about it: typed, pure, without any I/O.
//!
//! Front ends read command lines, environments and configuration files and fill in a [`Request`]. Option words and the
//! bit values of the C library's interface are theirs to know.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;

pub use crate::capability::{Capabilities, Capability};
use crate::host::DriverConfig;
use crate::options::{CudaCompatMode, DriverOptions};
use crate::require::Requirement;

/// Everything that decides what a container gets.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The devices.
    pub devices: DeviceRequest,
    /// The parts of the driver.
    pub capabilities: Capabilities,
    /// What the driver and the chosen GPUs must be.
    pub requirements: Vec<Requirement>,
    /// The administrator's part.
    pub policy: Policy,
}

/// The devices that a container asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    /// GPUs and MIG devices: indices, UUIDs, PCI addresses, `GPU:MIG` or `all`, separated by commas.
    pub ids: String,
    /// The GPUs whose MIG configuration it may change: `all` or nothing.
    pub mig_config: String,
    /// The GPUs whose MIG instances it may watch: `all` or nothing.
    pub mig_monitor: String,
    /// IMEX channels.
    pub imex_channels: Vec<u32>,
}

/// How a request is granted.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Where the driver is and how it is asked.
    pub driver: DriverConfig,
    /// Parts of the driver that no container gets.
    pub leave_out: DriverOptions,
    /// Whether 32-bit libraries go in too.
    pub compat32: bool,
    /// Whether device nodes are bound.
    pub device_nodes: bool,
    /// Whether the device cgroup is told to admit the devices.
    pub device_rules: bool,
    /// What becomes of the image's own CUDA compatibility libraries.
    pub cuda_compat: CudaCompatMode,
    /// Where files go.
    pub placement: Placement,
    /// Whether the plan has environment variables: for those who write a container's configuration.
    pub environment: bool,
    /// What is known of the image beforehand, and how its library path is updated.
    pub image: ImageOptions,
    /// Confine ldconfig with a move and chroot instead of pivot_root, for roots on a ramdisk.
    pub no_pivot: bool,
}

/// Where the driver's files go in a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Where the image's own loader and shell look: apply finds out.
    #[default]
    AsImage,
    /// Where they are on the host: the image is not known.
    AsHost,
}

/// What is said about an image instead of being detected.
#[derive(Clone, Debug, Default)]
pub struct ImageOptions {
    /// Where programs go; detected if none.
    pub bins_dir: Option<PathBuf>,
    /// Where native libraries go; detected if none.
    pub libs_dir: Option<PathBuf>,
    /// Where 32-bit libraries go; detected if none.
    pub libs32_dir: Option<PathBuf>,
    /// Where the image keeps CUDA; /usr/local/cuda if none.
    pub cudart_dir: Option<PathBuf>,
    /// Which ldconfig updates its cache: `@/path` on the host, `/path` in the image, or `auto`, which is also the default:
    /// none where the image's cache can be updated without a program, else the host's.
    pub ldconfig: Option<OsString>,
}

impl Default for Policy {
    /// Everything that a container asks for, by device nodes and rules, into the places of the image.
    fn default() -> Self {
        Self {
            driver: DriverConfig::default(),
            leave_out: DriverOptions::empty(),
            compat32: false,
            device_nodes: true,
            device_rules: true,
            cuda_compat: CudaCompatMode::Mount,
            placement: Placement::AsImage,
            environment: false,
            image: ImageOptions::default(),
            no_pivot: false,
        }
    }
}
