//! The machine at one moment: its driver, its GPUs and MIG devices, and which of them are well.
//!
//! Nothing here knows Kubernetes. The parts that do get a [`World`] by a watch channel and publish it; what they give is
//! checked again when they give it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use libnvc::host::monitor::{MigAttributes, MigPlacement};
use libnvc::host::query::QueryProgram;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

mod footprint;
mod look;
mod verdicts;
mod watching;
mod world;
mod xids;

pub use watching::watched;

/// Where the driver is, and who asks it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The driver root, as this process sees it.
    pub driver_root: PathBuf,
    /// The root of the device nodes.
    pub dev_root: PathBuf,
    pub query: QueryProgram,
    /// XIDs that are the program's fault, besides those of the built-in list.
    pub ignored_xids: Vec<u64>,
    /// The file of verdicts, which outlives this program.
    pub verdicts: PathBuf,
    /// How long a GPU must be quiet after an error that needs no reset, before it counts as well.
    pub quiet: Duration,
}

impl Source {
    /// Returns true if the kernel module is loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        footprint::is_loaded(&self.driver_root)
    }
}

/// What is known of the machine; the reason if nothing is, such as a driver that is not loaded.
pub type World = Result<Machine, String>;

/// The receiver of each new [`World`]. It never closes while the program runs.
pub type Watch = watch::Receiver<Arc<World>>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the driver, `580.159.04`.
    pub driver: String,
    /// Newest CUDA version that it supports, `13.0`.
    pub cuda: String,
    /// By minor number.
    pub gpus: Vec<Gpu>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The N of /dev/nvidiaN, and of the device's name.
    pub minor: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// `0000:3b:00.0`.
    pub busid: String,
    pub model: String,
    /// `Nvidia`, `Tesla`, …
    pub brand: String,
    /// Compute capability.
    pub compute: (i32, i32),
    /// Bytes; None if NVML did not tell.
    pub memory: Option<u64>,
    /// `None`, `HMM` or `ATS`, if it is known.
    pub addressing: Option<String>,
    /// MIG mode is on: it cannot be given as a whole.
    pub is_divided: bool,
    pub migs: Vec<Mig>,
    #[serde(default)]
    pub health: Health,
}

impl Gpu {
    /// Returns true for its UUID, and for those of its MIG devices.
    pub(crate) fn has(&self, uuid: &str) -> bool {
        self.uuid == uuid || self.migs.iter().any(|mig| mig.uuid == uuid)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// `MIG-…`.
    pub uuid: String,
    /// `1g.12gb`.
    pub profile: String,
    /// Its GPU instance and compute instance.
    pub instances: (u32, u32),
    pub placement: MigPlacement,
    pub attributes: MigAttributes,
    #[serde(default)]
    pub health: Health,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    #[default]
    Well,
    Sick {
        /// In words.
        reason: String,
        /// If an XID said so.
        xid: Option<u64>,
    },
}

impl Health {
    pub fn is_well(&self) -> bool {
        *self == Self::Well
    }
}
