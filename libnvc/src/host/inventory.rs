//! Defines the text by which a process that has queried NVML passes the answers to another one.
//!
//! A runtime queries NVML to write device nodes into config.json; the hook that configures the container a moment later
//! needs the same answers. Querying again would take longer than the hook's own work, and could give others.
//!
//! The text is JSON on one line, in one spelling: [`Inventory::from_str`] accepts exactly what [`Inventory`] prints.
//! Its values are validated like NVML's own answers, by the same functions. It describes only the GPUs and MIG devices
//! that were granted, so that its reader cannot grant more, and becomes invalid after [`MAX_AGE`]: numbers of devices
//! may be used again for others.
//!
//! ```text
//! {"version":1,"time":1795413600,"driver":"535.261.03","cuda":"12.2","gpus":[{"index":1,"uuid":"GPU-…",
//!  "pci":"00000000:af:00.0","minor":1,"arch":"8.0","brand":"Nvidia","mig_capable":true,
//!  "mig":[{"index":0,"uuid":"MIG-…","gi":1,"ci":0}]}]}
//! ```

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::query::{GpuReport, MigReport, PciReport, Versions};
use super::{DeviceInfo, DriverVersions, Gpu, MigDevice, device};
use crate::error::{Error, ErrorKind, Result};

/// The version of the text.
const VERSION: u32 = 1;

/// Age at which an inventory becomes invalid: also the time that a query may take.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30);

/// NVML's answers about the driver and the GPUs that a container is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    versions: DriverVersions,
    gpus: Vec<Gpu>,
    /// Seconds since 1970.
    time: u64,
}

/// The text's members, in its order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    time: u64,
    driver: String,
    cuda: String,
    gpus: Vec<GpuText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuText {
    index: u32,
    uuid: String,
    pci: String,
    minor: u32,
    arch: String,
    brand: String,
    mig_capable: bool,
    mig: Vec<MigText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MigText {
    index: u32,
    uuid: String,
    gi: u32,
    ci: u32,
}

impl Inventory {
    /// Longest text, in bytes; enough for 64 GPUs with seven MIG devices each. exec(2) limits an argument to 128 KiB.
    pub(crate) const MAX_LEN: usize = 96 << 10;

    /// Describes what was granted at `time`: `gpus`, each with its granted MIG devices only. Returns None if a text
    /// cannot express it, which is so under WSL2, or if the text would be too long.
    pub fn new(versions: DriverVersions, gpus: &[Gpu], time: SystemTime) -> Option<Self> {
        if gpus.iter().any(|gpu| gpu.node.is_none()) {
            return None;
        }
        let inventory = Self {
            versions,
            gpus: gpus.iter().map(without_files).collect(),
            time: time.duration_since(UNIX_EPOCH).ok()?.as_secs(),
        };
        (inventory.to_string().len() <= Self::MAX_LEN).then_some(inventory)
    }

    /// Returns the driver's versions.
    pub(crate) fn versions(&self) -> &DriverVersions {
        &self.versions
    }

    /// Returns the GPUs. Their product names, and whether they are lost, are not known.
    pub(crate) fn devices(&self) -> DeviceInfo {
        DeviceInfo {
            gpus: self.gpus.clone(),
            ..DeviceInfo::default()
        }
    }

    /// Checks that there are GPUs if they are needed.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn demand_gpus(&self, needed: bool) -> Result<()> {
        if needed && self.gpus.is_empty() {
            Err(refused("it has no GPU"))
        } else {
            Ok(())
        }
    }

    /// Checks the age at a time.
    ///
    /// # Errors
    /// It is older than [`MAX_AGE`], or from the future.
    pub(super) fn check_age(&self, now: SystemTime) -> Result<()> {
        let age = UNIX_EPOCH
            .checked_add(Duration::from_secs(self.time))
            .and_then(|time| now.duration_since(time).ok());
        match age {
            Some(age) if age < MAX_AGE => Ok(()),
            Some(age) => Err(refused(format!("it is {} s old", age.as_secs()))),
            None => Err(refused("it is from the future")),
        }
    }
}

/// Removes what a session adds to NVML's answers, and what planning does not need.
fn without_files(gpu: &Gpu) -> Gpu {
    Gpu {
        model: String::new(),
        drm_nodes: Vec::new(),
        drm_links: Vec::new(),
        proc_dir: None,
        mig_devices: gpu.mig_devices.iter().map(without_profile).collect(),
        ..gpu.clone()
    }
}

fn without_profile(mig: &MigDevice) -> MigDevice {
    MigDevice {
        graphics: None,
        ..mig.clone()
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mig = |mig: &MigDevice| MigText {
            index: mig.index,
            uuid: mig.uuid.clone(),
            gi: mig.gi,
            ci: mig.ci,
        };
        let gpu = |gpu: &Gpu| GpuText {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            pci: gpu.busid.clone(),
            minor: gpu.minor,
            arch: gpu.arch.clone(),
            brand: gpu.brand.clone(),
            mig_capable: gpu.mig_capable,
            mig: gpu.mig_devices.iter().map(mig).collect(),
        };
        let text = Text {
            version: VERSION,
            time: self.time,
            driver: self.versions.driver.clone(),
            cuda: self.versions.cuda.clone(),
            gpus: self.gpus.iter().map(gpu).collect(),
        };
        f.write_str(&serde_json::to_string(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Inventory {
    type Err = Error;

    /// Parses the text.
    ///
    /// # Errors
    /// It is not exactly what [`Inventory`] prints; a value is not one that NVML may answer; a device is named twice.
    fn from_str(text: &str) -> Result<Self> {
        if text.len() > Self::MAX_LEN {
            return Err(refused(format!("it has {} bytes", text.len())));
        }
        let read: Text = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
        if read.version != VERSION {
            return Err(refused(format!("it has version {}", read.version)));
        }
        let versions = device::versions(&Versions {
            driver: Ok(read.driver),
            cuda: Ok(cuda_number(&read.cuda).ok_or_else(|| refused("cuda"))?),
        })?;
        let gpus = read.gpus.iter().map(gpu).collect::<Result<Vec<_>>>()?;
        let inventory = Self {
            versions,
            gpus,
            time: read.time,
        };
        inventory.check_names()?;
        if inventory.to_string() == text {
            Ok(inventory)
        } else {
            Err(refused("it is spelt differently"))
        }
    }
}

impl Inventory {
    /// Checks that nothing is named twice.
    fn check_names(&self) -> Result<()> {
        let gpus = || self.gpus.iter();
        let migs = gpus().flat_map(|gpu| &gpu.mig_devices);
        let of_gpus = gpus().map(|gpu| gpu.uuid.as_str());
        let are_unique = unique(of_gpus.chain(migs.map(|mig| mig.uuid.as_str())))
            && unique(gpus().map(|gpu| gpu.index))
            && unique(gpus().map(|gpu| gpu.minor))
            && unique(gpus().map(|gpu| &gpu.busid));
        if are_unique {
            Ok(())
        } else {
            Err(refused("a device is named twice"))
        }
    }
}

fn unique<T: Eq + Hash>(mut all: impl Iterator<Item = T>) -> bool {
    let mut seen = HashSet::new();
    all.all(|one| seen.insert(one))
}

/// Converts a GPU by way of the report that NVML would have given.
fn gpu(text: &GpuText) -> Result<Gpu> {
    let mig = |mig: &MigText| MigReport {
        slot: mig.index,
        uuid: mig.uuid.clone(),
        gi: mig.gi,
        ci: mig.ci,
        name: None,
    };
    let report = GpuReport {
        index: None,
        name: String::new(),
        uuid: text.uuid.clone(),
        pci: pci_address(&text.pci).ok_or_else(|| refused("pci"))?,
        compute_capability: pair(&text.arch).ok_or_else(|| refused("arch"))?,
        brand: device::brand_number(&text.brand).ok_or_else(|| refused("brand"))?,
        minor: Some(text.minor),
        mig_capable: text.mig_capable,
        mig_enabled: !text.mig.is_empty(),
        persistent: false,
        coherent: None,
        mig_devices: text.mig.iter().map(mig).collect(),
    };
    device::gpu(text.index, &report)
}

/// Parses `12.2` as 12020.
fn cuda_number(text: &str) -> Option<i32> {
    let (major, minor) = pair(text)?;
    major.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)
}

/// Parses two numbers with a dot between them.
fn pair(text: &str) -> Option<(i32, i32)> {
    let (one, other) = text.split_once('.')?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

/// Parses `domain:bus:device.0`.
fn pci_address(text: &str) -> Option<PciReport> {
    let mut parts = text.strip_suffix(".0")?.splitn(3, ':');
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    Some(PciReport {
        domain: number()?,
        bus: number()?,
        device: number()?,
    })
}

/// Returns the error for an inventory that cannot be used.
pub(super) fn refused(why: impl fmt::Display) -> Error {
    Error::fault(ErrorKind::Malformed, "inventory", why.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
