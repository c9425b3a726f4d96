//! Defines the text by which a process that has queried NVML passes the answers to another one.
//!
//! A runtime queries NVML to write device nodes into config.json; the hook that configures the container a moment later
//! needs the same answers. Querying again would take longer than the hook's own work, and could give others.
//!
//! The text is JSON on one line, in one spelling: [`Inventory::from_str`] accepts exactly what [`Inventory`] prints.
//! Its GPUs are reports like those of a query's process, and validated by the same functions. It describes only the GPUs
//! and MIG devices that were granted, so that its reader cannot grant more, and becomes invalid after [`MAX_AGE`]:
//! numbers of devices may be used again for others.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::query::{GpuReport, MigReport, PciReport, Query, Versions};
use super::{DriverVersions, Gpu, MigDevice, device};
use crate::error::{Error, ErrorKind, Result};

/// The version of the text.
const VERSION: u32 = 2;

/// Age at which an inventory becomes invalid: also the time that a query may take.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30);

/// NVML's answers about the driver and the GPUs that a container is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory(Text);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    /// Seconds since 1970.
    time: u64,
    driver: String,
    /// In NVML's form.
    cuda: i32,
    /// Their product names are left out.
    gpus: Vec<GpuReport>,
}

impl Inventory {
    /// Longest text, in bytes; enough for 64 GPUs with seven MIG devices each. exec(2) limits an argument to 128 KiB.
    pub(crate) const MAX_LEN: usize = 96 << 10;

    /// Describes what was granted at `time`: `gpus`, each with its granted MIG devices only. Returns None if a text
    /// cannot express it, which is so under WSL2, or if the text would be too long.
    pub fn new(versions: &DriverVersions, gpus: &[Gpu], time: SystemTime) -> Option<Self> {
        let (major, minor) = pair(&versions.cuda)?;
        let inventory = Self(Text {
            version: VERSION,
            time: time.duration_since(UNIX_EPOCH).ok()?.as_secs(),
            driver: versions.driver.clone(),
            cuda: major
                .checked_mul(1000)?
                .checked_add(minor.checked_mul(10)?)?,
            gpus: gpus.iter().map(report).collect::<Option<_>>()?,
        });
        (inventory.to_string().len() <= Self::MAX_LEN).then_some(inventory)
    }

    /// Returns the driver's version.
    pub(crate) fn driver(&self) -> &str {
        &self.0.driver
    }

    /// Checks that there are GPUs if they are needed.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn demand_gpus(&self, needed: bool) -> Result<()> {
        if needed && self.0.gpus.is_empty() {
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
            .checked_add(Duration::from_secs(self.0.time))
            .and_then(|time| now.duration_since(time).ok());
        match age {
            Some(age) if age < MAX_AGE => Ok(()),
            Some(age) => Err(refused(format!("it is {} s old", age.as_secs()))),
            None => Err(refused("it is from the future")),
        }
    }
}

impl From<Inventory> for Query {
    fn from(inventory: Inventory) -> Self {
        Self::answered(inventory.0.versions(), inventory.0.gpus)
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
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
        device::versions(&read.versions())?;
        for gpu in &read.gpus {
            let index = gpu.index.ok_or_else(|| refused("index"))?;
            if device::gpu(index, gpu)?.node.is_none() {
                return Err(refused("minor"));
            }
        }
        read.check_names()?;
        let inventory = Self(read);
        if inventory.to_string() == text {
            Ok(inventory)
        } else {
            Err(refused("it is spelt differently"))
        }
    }
}

impl Text {
    fn versions(&self) -> Versions {
        Versions {
            driver: Ok(self.driver.clone()),
            cuda: Ok(self.cuda),
        }
    }

    /// Checks that nothing is named twice.
    fn check_names(&self) -> Result<()> {
        let gpus = || self.gpus.iter();
        let migs = gpus().flat_map(|gpu| &gpu.mig_devices);
        let of_gpus = gpus().map(|gpu| gpu.uuid.as_str());
        let are_unique = unique(of_gpus.chain(migs.map(|mig| mig.uuid.as_str())))
            && unique(gpus().map(|gpu| gpu.index))
            && unique(gpus().map(|gpu| gpu.minor))
            && unique(gpus().map(|gpu| gpu.pci.to_string()));
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

/// Converts a GPU to the report that NVML gave, without what planning does not need; None under WSL2.
fn report(gpu: &Gpu) -> Option<GpuReport> {
    let mig = |mig: &MigDevice| MigReport {
        slot: mig.index,
        uuid: mig.uuid.clone(),
        gi: mig.gi,
        ci: mig.ci,
        name: None,
    };
    Some(GpuReport {
        index: Some(gpu.index),
        name: String::new(),
        uuid: gpu.uuid.clone(),
        pci: pci_address(&gpu.busid)?,
        compute_capability: pair(&gpu.arch)?,
        brand: device::brand_number(&gpu.brand)?,
        minor: Some(gpu.node.as_ref()?.number.minor),
        mig_capable: gpu.mig_capable,
        mig_enabled: !gpu.mig_devices.is_empty(),
        persistent: false,
        coherent: None,
        mig_devices: gpu.mig_devices.iter().map(mig).collect(),
    })
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
