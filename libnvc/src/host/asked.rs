//! Decides which GPUs NVML is asked about: those that a request names, if the kernel module's list says which they are.
//!
//! NVML attaches a GPU when it is first asked for its handle, which takes milliseconds, and hangs if that GPU hangs. So
//! a container should not wait for the GPUs of others. The kernel module's list is only a guess: the query process
//! compares NVML's answers with it, and asks about all GPUs if anything differs.

use super::DriverRoot;
use super::integrated::is_its_name;
use super::procfs::{self, ModuleGpu};
use super::query::{AskedGpu, Only};
use crate::device_name::{DeviceName, MIN_UUID_START, has_prefix};

/// The GPUs that NVML is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpusAsked {
    /// All.
    #[default]
    All,
    /// Those of these names, in the grammar of [`DeviceName`]; all if there are
    /// none, if a name does not tell its GPU without NVML, or if NVML's answer is not the expected one.
    Named(Vec<String>),
    /// None: the driver's versions are enough.
    None,
}

/// Returns which GPUs the query process should ask about; None for all.
pub(super) fn only(root: &DriverRoot, gpus: &GpusAsked) -> Option<Only> {
    let names = match gpus {
        GpusAsked::All => return None,
        GpusAsked::None => return Some(Only::default()),
        GpusAsked::Named(names) if names.is_empty() => return None,
        GpusAsked::Named(names) => names,
    };
    let mut there = procfs::gpus(root);
    there.retain(|gpu| !gpu.is_excluded);
    // What a Jetson is, NVML decides.
    let is_integrated = |gpu: &ModuleGpu| !gpu.is_pci || is_its_name(&gpu.model);
    if there.iter().any(is_integrated) {
        return None;
    }
    let gpus: Option<Vec<AskedGpu>> = names.iter().map(|name| of_name(name, &there)).collect();
    Some(Only {
        gpus: gpus?,
        listed: u32::try_from(there.len()).ok()?,
    })
}

/// Returns the GPU of a name; None if only NVML can tell.
fn of_name(name: &str, there: &[ModuleGpu]) -> Option<AskedGpu> {
    // No device has such a name; the error lists all.
    if name.contains(',') {
        return None;
    }
    let known = |gpu: &ModuleGpu, uuid: &str| {
        gpu.known_uuid()
            .is_some_and(|known| known.eq_ignore_ascii_case(uuid))
    };
    match DeviceName::parse(name)? {
        DeviceName::Gpu(index) => Some(AskedGpu::Index { index, slot: None }),
        DeviceName::Mig(index, slot) => Some(AskedGpu::Index {
            index,
            slot: Some(slot),
        }),
        DeviceName::Address(address) => at(there, None, |gpu| {
            DeviceName::parse(&gpu.busid) == Some(DeviceName::Address(address.clone()))
        }),
        DeviceName::Instances(uuid, gi, ci) => at(there, Some((gi, ci)), |gpu| known(gpu, uuid)),
        DeviceName::Uuid(uuid) if there.iter().any(|gpu| known(gpu, uuid)) => {
            at(there, None, |gpu| known(gpu, uuid))
        }
        // The start of a UUID, if all are known: the module knows that of a GPU since it was first attached.
        DeviceName::Uuid(start) => {
            let is_start =
                has_prefix(start, "GPU-") && start.len() >= "GPU-".len() + MIN_UUID_START;
            let are_known = there.iter().all(|gpu| gpu.known_uuid().is_some());
            (is_start && are_known).then(|| at(there, None, |gpu| has_prefix(&gpu.uuid, start)))?
        }
    }
}

/// Returns the only GPU that is meant.
fn at(
    there: &[ModuleGpu],
    instances: Option<(u32, u32)>,
    is_meant: impl Fn(&ModuleGpu) -> bool,
) -> Option<AskedGpu> {
    let mut found = there.iter().filter(|gpu| is_meant(gpu));
    let gpu = found.next().filter(|_| found.next().is_none())?;
    Some(AskedGpu::Address {
        address: gpu.busid.clone(),
        uuid: gpu.known_uuid().map(str::to_owned),
        instances,
    })
}
