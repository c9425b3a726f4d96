//! Builds the report of `info --format=json`.
//!
//! ```json
//! {
//!   "driver": { "version": "535.261.03", "cuda_version": "12.2" },
//!   "devices": [
//!     {
//!       "index": 0, "minor": 0, "model": "NVIDIA A100", "brand": "Nvidia", "uuid": "GPU-…",
//!       "pci_address": "00000000:3b:00.0", "compute_capability": "8.0", "node": "/dev/nvidia0",
//!       "mig_capable": true,
//!       "mig_devices": [ { "index": 0, "uuid": "MIG-…", "gpu_instance": 1, "compute_instance": 0 } ]
//!     }
//!   ],
//!   "unusable_devices": [ { "index": 1, "uuid": null, "pci_address": null, "error": "nvml error: gpu is lost" } ]
//! }
//! ```
//!
//! `node` is null under WSL2; `uuid` and `pci_address` of an unusable device are null if NVML does not report them.

use libnvc::HostPath;
use libnvc::host::{DeviceInfo, DriverVersions, FailedGpu, Gpu, MigDevice};
use serde::Serialize;

/// The driver and the GPUs of a machine.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    driver: Driver<'a>,
    devices: Vec<Device<'a>>,
    unusable_devices: Vec<UnusableDevice<'a>>,
}

#[derive(Debug, Serialize)]
struct Driver<'a> {
    version: &'a str,
    cuda_version: &'a str,
}

#[derive(Debug, Serialize)]
struct Device<'a> {
    index: u32,
    minor: u32,
    model: &'a str,
    brand: &'a str,
    uuid: &'a str,
    pci_address: &'a str,
    compute_capability: &'a str,
    node: Option<&'a HostPath>,
    mig_capable: bool,
    mig_devices: Vec<Mig<'a>>,
}

#[derive(Debug, Serialize)]
struct Mig<'a> {
    index: u32,
    uuid: &'a str,
    gpu_instance: u32,
    compute_instance: u32,
}

#[derive(Debug, Serialize)]
struct UnusableDevice<'a> {
    index: u32,
    uuid: Option<&'a str>,
    pci_address: Option<&'a str>,
    error: String,
}

impl<'a> Report<'a> {
    pub(super) fn new(versions: &'a DriverVersions, devices: &'a DeviceInfo) -> Self {
        Self {
            driver: Driver {
                version: &versions.driver,
                cuda_version: &versions.cuda,
            },
            devices: devices.gpus.iter().map(Device::from).collect(),
            unusable_devices: devices.failed.iter().map(UnusableDevice::from).collect(),
        }
    }
}

impl<'a> From<&'a Gpu> for Device<'a> {
    fn from(gpu: &'a Gpu) -> Self {
        Self {
            index: gpu.index,
            minor: gpu.minor,
            model: &gpu.model,
            brand: &gpu.brand,
            uuid: &gpu.uuid,
            pci_address: &gpu.busid,
            compute_capability: &gpu.arch,
            node: gpu.node.as_ref().map(|node| &node.path),
            mig_capable: gpu.mig_capable,
            mig_devices: gpu.mig_devices.iter().map(Mig::from).collect(),
        }
    }
}

impl<'a> From<&'a MigDevice> for Mig<'a> {
    fn from(mig: &'a MigDevice) -> Self {
        Self {
            index: mig.index,
            uuid: &mig.uuid,
            gpu_instance: mig.gi,
            compute_instance: mig.ci,
        }
    }
}

impl<'a> From<&'a FailedGpu> for UnusableDevice<'a> {
    fn from(gpu: &'a FailedGpu) -> Self {
        Self {
            index: gpu.index,
            uuid: gpu.uuid.as_deref(),
            pci_address: gpu.busid.as_deref(),
            error: gpu.error.message(),
        }
    }
}
