//! Defines the data for monitoring: facts about each GPU, and its current state.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::nvml::{MigAttributes, MigPlacement};

/// Facts about a driver and its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Version of the kernel driver, or NVML's error message.
    pub driver: Result<String, DriverMessage>,
    /// CUDA's version as a number, 12020 for 12.2, or CUDA's error message.
    pub cuda: Result<i32, DriverMessage>,
    /// The GPUs in NVML's order; NVML's error message for one that cannot be identified.
    pub gpus: Vec<Result<GpuFacts, DriverMessage>>,
}

/// Facts that do not change while a GPU is in use. None if the GPU or the driver does not provide one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuFacts {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The N of /dev/nvidiaN.
    pub minor: u32,
    /// PCI address; the domain has four digits unless it needs more.
    pub busid: String,
    /// Product name.
    pub model: Option<String>,
    /// Power limit in milliwatts.
    pub power_limit: Option<u32>,
    /// Bytes of BAR1, through which CPUs access the memory.
    pub bar1: Option<u64>,
    /// Newest supported PCIe generation.
    pub link_generation: Option<u32>,
    /// Largest number of PCIe lanes.
    pub link_width: Option<u32>,
    /// Number of cores, if NVML tells it.
    #[serde(default)]
    pub cores: Option<u32>,
    /// Maximum clock of the multiprocessors in MHz.
    pub core_clock: Option<u32>,
    /// Maximum clock of the memory in MHz.
    pub memory_clock: Option<u32>,
    /// Compute capability, major and minor.
    pub arch: Option<(i32, i32)>,
    /// Number of multiprocessors.
    pub multiprocessors: Option<u32>,
    /// True if ECC is enabled.
    pub ecc: Option<bool>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of shared memory per multiprocessor.
    pub shared_memory: Option<u32>,
    /// Bytes of constant memory.
    pub constant_memory: Option<u32>,
    /// Bytes of the L2 cache.
    pub l2_cache: Option<u32>,
    /// Width of the memory bus in bits.
    pub bus_width: Option<u32>,
    /// The memory clock as reported by CUDA, in kHz.
    pub cuda_memory_clock: Option<u32>,
    /// GPUs with peer access.
    pub peers: Vec<Peer>,
    /// MIG mode is on.
    #[serde(default)]
    pub is_divided: bool,
    /// MIG devices.
    pub mig: Vec<MigFacts>,
    /// NVML's number of the brand, for [`devices`](crate::host::monitor::devices).
    #[serde(default)]
    pub brand: Option<u32>,
    /// NVML's number of the addressing mode, likewise: 0 none, 1 HMM, 2 ATS.
    #[serde(default)]
    pub addressing: Option<u32>,
    /// What it needs to recover, NVML's number, likewise: 0 nothing, 1 a reset, 2 a reboot.
    #[serde(default)]
    pub recovery: Option<u32>,
    /// NVML's or CUDA's messages about values that could not be read, although they should exist.
    pub problems: Vec<String>,
}

/// Another GPU with peer access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its PCI address.
    pub busid: String,
    /// Topology distance (`nvmlGpuTopologyLevel_t`: 0 is the same board, 10 to 50 farther); None if NVML does not know.
    pub level: Option<i32>,
}

/// A MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigFacts {
    /// NVML's slot for it.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// GPU instance.
    pub gpu_instance: u32,
    /// Compute instance.
    pub compute_instance: u32,
    /// Product name including the profile.
    pub name: Option<String>,
    /// What it consists of, for [`devices`](crate::host::monitor::devices).
    #[serde(default)]
    pub attributes: Option<MigAttributes>,
    /// Where its GPU instance is, likewise; None also if NVML refuses that to its user.
    #[serde(default)]
    pub placement: Option<MigPlacement>,
}

/// Something that happened to a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuEvent {
    /// A critical error.
    Xid {
        /// UUID of the GPU.
        gpu: String,
        /// The GPU instance, if it is of one, and the compute instance.
        instance: Option<(u32, Option<u32>)>,
        /// The XID.
        code: u64,
    },
    /// The MIG devices or the health of a GPU have changed; ask.
    Changed,
}

/// Current state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuStatus {
    /// Power draw in milliwatts.
    pub power: Option<u32>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Utilisation in percent.
    pub busy: Option<u32>,
    /// Memory utilisation in percent.
    pub memory_busy: Option<u32>,
    /// Video encoder utilisation in percent.
    pub encoder: Option<u32>,
    /// Video decoder utilisation in percent.
    pub decoder: Option<u32>,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Uncorrectable errors: L1 cache, L2 cache, device memory.
    pub ecc_errors: [Option<u64>; 3],
    /// Uncorrectable errors of the SRAM: since Ampere, whose caches are not counted.
    #[serde(default)]
    pub sram_errors: Option<u64>,
    /// Clock of the multiprocessors in MHz.
    pub core_clock: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_clock: Option<u32>,
    /// Bytes of BAR1 in use.
    pub bar1_used: Option<u64>,
    /// PCIe traffic to the GPU in kB/s.
    pub received: Option<u32>,
    /// PCIe traffic from the GPU in kB/s.
    pub sent: Option<u32>,
    /// Processes with a compute context.
    pub processes: Vec<ProcessStatus>,
    /// Memory of its MIG devices.
    pub mig: Vec<MigStatus>,
}

/// A process with a compute context on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its pid.
    pub pid: u32,
    /// Its name, unless it has ended.
    pub name: Option<String>,
    /// Bytes of GPU memory, if the driver knows.
    pub memory: Option<u64>,
}

/// The memory of a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigStatus {
    /// `MIG-…`.
    pub uuid: String,
    /// Bytes in use.
    pub memory_used: Option<u64>,
    /// Total bytes.
    pub memory_total: Option<u64>,
}

/// The message of NVML or CUDA about a fact that it does not provide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{0}")]
pub struct DriverMessage(pub String);

impl From<DriverMessage> for Error {
    fn from(message: DriverMessage) -> Self {
        Self::new(ErrorKind::DriverFailed, message.0)
    }
}
