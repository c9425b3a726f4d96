//! Calls NVML in upstream's order, and survives any answer.
//!
//! A failing GPU does not fail the query: a GPU that fell off the bus must not stop containers that use the others.

use std::collections::BTreeMap;
use std::ffi::CString;

use super::protocol::{
    AskedGpu, Fault, GpuAnswer, GpuFault, GpuReport, Message, MigReport, Only, PciReport, Versions,
};
use crate::device_name::DeviceName;
use crate::sys::nvml::{
    Device, FUNCTION_NOT_FOUND, NOT_FOUND, NOT_SUPPORTED, Nvml, NvmlFailure, Reason,
};

/// Upper bound of the number of GPUs; no machine has more, so a larger number is invalid.
const MAX_GPUS: u32 = 4096;

/// Upper bound of MIG slots per GPU.
const MAX_MIG_SLOTS: u32 = 256;

/// The addressing mode "coherent".
const ADDRESSES_COHERENTLY: u32 = 2;

/// The current MIG mode "on".
const MIG_ENABLED: u32 = 1;

/// Reads the driver's versions.
pub(super) fn versions(nvml: &Nvml) -> Versions {
    Versions {
        driver: nvml.driver_version().map_err(|f| fault(nvml, f)),
        cuda: nvml.cuda_version().map_err(|f| fault(nvml, f)),
    }
}

/// Reads all GPUs, or these if they are as expected. Calls `asking` with a message before NVML is asked about a GPU.
pub(super) fn gpus(
    nvml: &Nvml,
    wsl: bool,
    only: Option<&Only>,
    mut asking: impl FnMut(Message),
) -> Result<Vec<GpuAnswer>, Fault> {
    if only.is_some_and(|only| only.gpus.is_empty()) {
        return Ok(Vec::new());
    }
    let count = gpu_count(nvml)?;
    let only = only.filter(|only| only.listed == count);
    if let Some(gpus) = only.and_then(|only| expected(nvml, &only.gpus, &mut asking)) {
        return Ok(gpus);
    }
    let mut gpus = Vec::new();
    for index in 0..count {
        asking(Message::Asking(index));
        gpus.push(gpu(nvml, nvml.gpu(index), wsl));
    }
    Ok(gpus)
}

/// Reads these GPUs; None if one of them fails, or is not as expected.
fn expected(
    nvml: &Nvml,
    wanted: &[AskedGpu],
    asking: &mut impl FnMut(Message),
) -> Option<Vec<GpuAnswer>> {
    let mut gpus = BTreeMap::new();
    for asked in wanted {
        let device = match asked {
            AskedGpu::Index { index, .. } => {
                asking(Message::Asking(*index));
                nvml.gpu(*index)
            }
            AskedGpu::Address { address, .. } => {
                asking(Message::AskingAt(address.clone()));
                nvml.gpu_at(&CString::new(address.as_str()).ok()?)
            }
        };
        let device = device.ok()?;
        let of_nvml = nvml.index(device).ok()?;
        let mut report = gpu(nvml, Ok(device), false).ok()?;
        let is_expected = match asked {
            AskedGpu::Index { index, slot } => {
                let mut migs = report.mig_devices.iter();
                *index == of_nvml && slot.is_none_or(|slot| migs.any(|mig| mig.slot == slot))
            }
            AskedGpu::Address {
                address,
                uuid,
                instances,
            } => {
                let same = |uuid: &String| uuid.eq_ignore_ascii_case(&report.uuid);
                let mut migs = report.mig_devices.iter();
                DeviceName::parse(address) == Some(DeviceName::Address(report.pci.to_string()))
                    && uuid.as_ref().is_none_or(same)
                    && instances.is_none_or(|wanted| migs.any(|mig| (mig.gi, mig.ci) == wanted))
            }
        };
        if !is_expected {
            return None;
        }
        report.index = Some(of_nvml);
        gpus.insert(of_nvml, Ok(report));
    }
    Some(gpus.into_values().collect())
}

/// Returns the number of GPUs, broken ones included.
pub(super) fn gpu_count(nvml: &Nvml) -> Result<u32, Fault> {
    let count = nvml.gpu_count().map_err(|f| fault(nvml, f))?;
    if count > MAX_GPUS {
        return Err(Fault::Nonsense {
            function: "nvmlDeviceGetCount_v2".into(),
            text: format!("too many devices: {count}"),
        });
    }
    Ok(count)
}

fn gpu(nvml: &Nvml, device: Result<Device, NvmlFailure>, wsl: bool) -> GpuAnswer {
    let device = device.map_err(|f| {
        Box::new(GpuFault {
            name: None,
            uuid: None,
            pci: None,
            no_pci: false,
            compute_capability: None,
            fault: fault(nvml, f),
        })
    })?;
    // These are all read even if one of them fails, so that a broken GPU, or one that is no PCI device, can be
    // recognised by the others.
    let name = nvml.name(device);
    let uuid = nvml.uuid(device);
    let pci = nvml.pci(device).map(|pci| PciReport {
        domain: pci.domain,
        bus: pci.bus,
        device: pci.device,
    });
    let compute_capability = nvml.compute_capability(device);
    let failed = |fault| GpuFault {
        name: name.as_ref().ok().cloned(),
        uuid: uuid.as_ref().ok().cloned(),
        pci: pci.ok(),
        no_pci: pci.is_err_and(|failure| failure.reason == Reason::Code(NOT_SUPPORTED)),
        compute_capability: compute_capability.ok(),
        fault,
    };
    let rest = || -> Result<GpuReport, Fault> {
        let of_nvml = |f| fault(nvml, f);
        let name = name.as_ref().map_err(|f| of_nvml(*f))?.clone();
        let uuid = uuid.as_ref().map_err(|f| of_nvml(*f))?.clone();
        let pci = pci.map_err(of_nvml)?;
        let compute_capability = compute_capability.map_err(of_nvml)?;
        let brand = nvml.brand(device).map_err(of_nvml)?;
        let mut report = GpuReport {
            index: None,
            name,
            uuid,
            pci,
            compute_capability,
            brand,
            minor: None,
            mig_capable: false,
            mig_enabled: false,
            persistent: false,
            coherent: coherent(nvml, device),
            mig_devices: Vec::new(),
        };
        if !wsl {
            report.minor = Some(nvml.minor(device).map_err(of_nvml)?);
            (report.mig_capable, report.mig_devices) = mig(nvml, device)?;
            let is_on = || matches!(nvml.mig_mode(device), Ok((MIG_ENABLED, _)));
            report.persistent = matches!(nvml.persistence_mode(device), Ok(1));
            report.mig_enabled = !report.mig_devices.is_empty() || report.mig_capable && is_on();
        }
        Ok(report)
    };
    rest().map_err(|fault| Box::new(failed(fault)))
}

/// Returns true if a GPU addresses the host's memory coherently, false if it has no addressing modes.
fn coherent(nvml: &Nvml, gpu: Device) -> Option<bool> {
    match nvml.addressing_mode(gpu) {
        Ok(mode) => Some(mode == ADDRESSES_COHERENTLY),
        Err(NvmlFailure {
            reason: Reason::Code(FUNCTION_NOT_FOUND | NOT_SUPPORTED),
            ..
        }) => Some(false),
        Err(_) => None,
    }
}

/// Reads whether a GPU supports MIG, and its MIG devices.
pub(super) fn mig(nvml: &Nvml, gpu: Device) -> Result<(bool, Vec<MigReport>), Fault> {
    let of_nvml = |f| fault(nvml, f);
    let mode = match nvml.mig_mode(gpu) {
        Ok((current, _pending)) => current,
        // An old driver, or a GPU without MIG.
        Err(NvmlFailure {
            reason: Reason::Code(FUNCTION_NOT_FOUND | NOT_SUPPORTED),
            ..
        }) => return Ok((false, Vec::new())),
        Err(failure) => return Err(of_nvml(failure)),
    };
    if mode != MIG_ENABLED {
        return Ok((true, Vec::new()));
    }
    let slots = nvml.mig_slots(gpu).map_err(of_nvml)?;
    if slots > MAX_MIG_SLOTS {
        return Err(Fault::Nonsense {
            function: "nvmlDeviceGetMaxMigDeviceCount".into(),
            text: format!("too many MIG devices: {slots}"),
        });
    }
    let mut devices = Vec::new();
    for slot in 0..slots {
        let device = match nvml.mig_device(gpu, slot) {
            Ok(device) => device,
            // A destroyed MIG device leaves an empty slot; more devices may follow.
            Err(NvmlFailure {
                reason: Reason::Code(NOT_FOUND),
                ..
            }) => continue,
            Err(failure) => return Err(of_nvml(failure)),
        };
        let gi = nvml.gpu_instance(device).map_err(of_nvml)?;
        let ci = nvml.compute_instance(device).map_err(of_nvml)?;
        let uuid = nvml.uuid(device).map_err(of_nvml)?;
        // Some drivers refuse it; it matters only for graphics.
        let name = nvml.name(device).ok();
        devices.push(MigReport {
            slot,
            uuid,
            gi,
            ci,
            name,
        });
    }
    Ok((true, devices))
}

/// Formats a failure.
pub(super) fn fault(nvml: &Nvml, failure: NvmlFailure) -> Fault {
    let function = failure.function.to_string_lossy().into_owned();
    match failure.reason {
        // The function that returns error texts may be missing from NVML too.
        Reason::Code(code) => Fault::Nvml {
            text: nvml.error_text(code).unwrap_or_else(|| match code {
                FUNCTION_NOT_FOUND => "Function Not Found".into(),
                _ => format!("code {code}"),
            }),
            function,
            code,
        },
        Reason::Unterminated => Fault::Nonsense {
            function,
            text: "nvml error: unterminated string".into(),
        },
        Reason::NoHandle => Fault::Nonsense {
            function,
            text: "nvml error: no device handle".into(),
        },
    }
}
