//! Recognises a GPU that is part of a Tegra SoC, by upstream's rules: it is no PCI device, or has Thor's address.

use super::DriverRoot;
use super::procfs::{self, ModuleGpu};
use super::query::{GpuFault, PciReport};

/// Names of integrated GPUs that have no PCI address.
const INTEGRATED: [&str; 2] = ["(nvgpu)", "NVIDIA Thor"];

/// The PCI address of Thor's integrated GPU.
pub(super) const THOR: PciReport = PciReport {
    domain: 0,
    bus: 1,
    device: 0,
};

/// Returns the GPUs on the PCI bus that the kernel module lists with a node, except an integrated one: for a driver
/// whose NVML does not answer.
pub fn discrete_gpus(root: &DriverRoot) -> Vec<ModuleGpu> {
    let PciReport {
        domain,
        bus,
        device,
    } = THOR;
    let thor = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
    let mut gpus = procfs::gpus(root);
    gpus.retain(|gpu| gpu.is_pci && gpu.minor.is_some() && gpu.busid != thor);
    gpus
}

/// Returns true if a GPU that NVML fails on is part of a SoC; None if NVML does not report it.
pub(super) fn is_integrated(failed: &GpuFault) -> Option<bool> {
    match (failed.pci, &failed.name) {
        (Some(pci), _) => Some(pci == THOR),
        (None, Some(name)) if failed.no_pci => Some(is_its_name(name)),
        (None, _) => None,
    }
}

/// Returns true if a product name is that of an integrated GPU.
pub(super) fn is_its_name(name: &str) -> bool {
    INTEGRATED.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::query::Fault;

    fn unidentified() -> GpuFault {
        GpuFault {
            name: None,
            uuid: None,
            pci: None,
            no_pci: true,
            compute_capability: None,
            fault: Fault::Load(String::new()),
        }
    }

    #[test]
    fn names_and_addresses_decide() {
        let named = |name: &str, no_pci| GpuFault {
            name: Some(name.into()),
            no_pci,
            ..unidentified()
        };
        for (name, no_pci, expected) in [
            ("Orin (nvgpu)", true, Some(true)),
            ("NVIDIA Thor", true, Some(true)),
            ("NVIDIA RTX A6000", true, Some(false)),
            // The address is unknown for another reason.
            ("Orin (nvgpu)", false, None),
        ] {
            assert_eq!(is_integrated(&named(name, no_pci)), expected, "{name}");
        }
        let nameless = GpuFault {
            name: None,
            ..unidentified()
        };
        assert_eq!(is_integrated(&nameless), None);
        let thor = GpuFault {
            pci: Some(THOR),
            ..named("NVIDIA Thor", false)
        };
        assert_eq!(is_integrated(&thor), Some(true));
    }
}
