//! Lists GPUs with what NVML says about each, including a GPU that is part of a SoC.
//!
//! Such a GPU is no PCI device, and some questions about it have no answer. [`DeviceInfo`](super::DeviceInfo) counts it
//! among the failed ones, because a container cannot be configured with it: its nodes are those of a Jetson's file
//! lists.

use super::device::{arch, gpu, is_uuid, product_name};
use super::integrated::{self, THOR};
use super::query::{GpuAnswer, numbered};
use super::{Gpu, device};
use crate::error::{ErrorKind, Result};

/// A GPU on NVML's list, which may be one that containers cannot be configured with.
#[derive(Clone, Debug)]
pub struct ListedGpu {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`, or without that prefix for some integrated GPUs, if known.
    pub uuid: Option<String>,
    /// Product name, if known.
    pub model: Option<String>,
    /// Compute capability, if known.
    pub arch: Option<String>,
    /// True if it is part of a Tegra SoC; None if NVML does not report it. On other machines this has no meaning,
    /// because a discrete GPU may have the PCI address of Thor's.
    pub integrated: Option<bool>,
    /// The GPU if NVML answered all questions, or the first failure.
    pub gpu: Result<Gpu>,
}

impl ListedGpu {
    /// Returns true if its name is that of a GPU that is part of a Tegra SoC. Unlike its address, the name means this
    /// on any machine.
    pub fn is_named_as_integrated(&self) -> bool {
        self.model.as_deref().is_some_and(integrated::is_its_name)
    }
}

/// Converts NVML's list.
pub(super) fn of_reports(reports: &[GpuAnswer]) -> Vec<ListedGpu> {
    let listed = numbered(reports).map(|(index, report)| match report {
        Ok(report) => ListedGpu {
            index,
            uuid: Some(report.uuid.clone()),
            model: Some(product_name(&report.name)),
            arch: arch(report.compute_capability).ok(),
            integrated: Some(report.pci == THOR),
            gpu: gpu(index, report),
        },
        Err(failed) => ListedGpu {
            index,
            uuid: failed.uuid.clone(),
            model: failed.name.as_deref().map(product_name),
            arch: failed.compute_capability.and_then(|of| arch(of).ok()),
            integrated: integrated::is_integrated(failed),
            gpu: Err(device::error(&failed.fault, ErrorKind::DriverFailed)),
        },
    });
    let mut all: Vec<_> = listed.collect();
    for listed in &mut all {
        listed.uuid.take_if(|uuid| !is_uuid(uuid));
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::query::{Fault, GpuFault, GpuReport, PciReport};

    fn unsupported() -> Fault {
        Fault::Nvml {
            function: "nvmlDeviceGetPciInfo".into(),
            code: 3,
            text: "Not Supported".into(),
        }
    }

    fn orin() -> GpuFault {
        GpuFault {
            name: Some("Orin (nvgpu)".into()),
            uuid: Some("1ee2a3b4-0000-5000-8000-123456789abc".into()),
            pci: None,
            no_pci: true,
            compute_capability: Some((8, 7)),
            fault: unsupported(),
        }
    }

    fn discrete(bus: u32) -> GpuReport {
        GpuReport {
            index: None,
            name: "NVIDIA RTX A6000".into(),
            uuid: "GPU-c2f9e6d7-71a8-4b0d-8e35-52d6a90f7b02".into(),
            pci: PciReport { bus, ..THOR },
            compute_capability: (8, 6),
            brand: 13,
            minor: Some(1),
            mig_capable: false,
            mig_enabled: false,
            persistent: false,
            coherent: None,
            mig_devices: Vec::new(),
        }
    }

    #[test]
    fn an_integrated_gpu_is_listed_with_its_facts() {
        let listed = of_reports(&[Err(Box::new(orin())), Ok(discrete(5))]);
        let [integrated, discrete] = &listed[..] else {
            panic!("{listed:?}");
        };
        assert_eq!(integrated.integrated, Some(true));
        assert_eq!(integrated.uuid, orin().uuid);
        assert_eq!(integrated.arch.as_deref(), Some("8.7"));
        let message = integrated.gpu.as_ref().unwrap_err().message();
        assert_eq!(message, "nvml error: not supported");
        assert_eq!((discrete.index, discrete.integrated), (1, Some(false)));
        assert_eq!(discrete.gpu.as_ref().unwrap().minor, 1);
    }

    #[test]
    fn an_address_decides() {
        let kind = |bus| of_reports(&[Ok(discrete(bus))])[0].integrated;
        assert_eq!((kind(1), kind(2)), (Some(true), Some(false)));
        // The usual address of a desktop's only GPU.
        let desktop = &of_reports(&[Ok(discrete(1))])[0];
        assert!(!desktop.is_named_as_integrated());
        let orin = &of_reports(&[Err(Box::new(orin()))])[0];
        assert!(orin.is_named_as_integrated());
    }

    #[test]
    fn strange_facts_are_left_out() {
        let odd = GpuFault {
            uuid: Some("a b".into()),
            compute_capability: Some((-1, 0)),
            name: Some("x\u{1b}[2J".into()),
            ..orin()
        };
        let listed = of_reports(&[Err(Box::new(odd))]).remove(0);
        assert_eq!((listed.uuid, listed.arch), (None, None));
        assert_eq!(listed.model.as_deref(), Some("x\\u{1b}[2J"));
    }
}
