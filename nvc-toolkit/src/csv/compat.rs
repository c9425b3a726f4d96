//! Finds the arguments of enable-cuda-compat on a Jetson whose driver has NVML.
//!
//! The hook compares an image's CUDA compatibility libraries with the host's CUDA version, which NVML reports. Older
//! Jetsons have no NVML, and no such libraries.

use std::fs;
use std::path::Path;

use libnvc::host::{DriverRoot, everything};

use crate::session;

/// The directory of images' compatibility libraries for Orin; other GPUs have the hook's default.
const ORIN: &str = "/usr/local/cuda/compat_orin";

/// Returns the hook's arguments; empty if NVML is missing or fails. `directory` replaces Orin's directory unless it is
/// empty.
pub fn arguments(root: &Path, directory: &str) -> Vec<String> {
    driver(root).map_or_else(Vec::new, |(cuda, model)| of(&cuda, &model, directory))
}

/// Returns the arguments for a CUDA version and a product name.
fn of(cuda: &str, model: &str, directory: &str) -> Vec<String> {
    let directory = match directory {
        "" => ORIN,
        given => given,
    };
    let directory = model
        .contains("Orin")
        .then(|| format!("--cuda-compat-container-root={directory}"));
    let version = format!("--host-cuda-version={cuda}");
    [version].into_iter().chain(directory).collect()
}

/// The board's name, in the device tree.
const BOARD: &str = "/proc/device-tree/model";

/// Returns the driver's CUDA version, and the first GPU's product name or the board's name.
fn driver(root: &Path) -> Option<(String, String)> {
    // No process is started for a driver without NVML.
    if !everything::has_management_library(&DriverRoot::open(root).ok()?) {
        return None;
    }
    let mut session = session::open(root.into()).ok()?;
    let cuda = session.cuda_version().ok()?;
    // An integrated GPU is no PCI device, and NVML may refuse questions about it.
    let gpus = session
        .devices()
        .map_or_else(|_| Vec::new(), |info| info.gpus);
    let model = match gpus.into_iter().next() {
        Some(gpu) => gpu.model,
        None => fs::read_to_string(BOARD).unwrap_or_default(),
    };
    Some((cuda, model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orin_has_its_own_directory() {
        let version = "--host-cuda-version=12.6";
        let own = "--cuda-compat-container-root=/usr/local/cuda/compat_orin";
        let given = "--cuda-compat-container-root=/opt/compat";
        assert_eq!(of("12.6", "Orin (nvgpu)", ""), [version, own]);
        assert_eq!(of("12.6", "Orin (nvgpu)", "/opt/compat"), [version, given]);
        assert_eq!(of("12.6", "NVIDIA Thor", "/opt/compat"), [version]);
    }

    #[test]
    fn a_driver_without_nvml_is_not_asked() {
        let empty = Path::new("/proc/self/fdinfo");
        assert_eq!(arguments(empty, ""), [""; 0]);
    }
}
