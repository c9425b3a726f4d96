//! Finds the driver stores of a WSL2 host, where the Windows driver replaces the Linux one.

use std::path::Path;

use log::debug;

use crate::error::{Error, ErrorKind, Result};
use crate::host::WslDriver;
use crate::path::HostPath;
use crate::sys::dxcore::{self, Adapter};

/// The name that the loader resolves, and the path for hosts whose loader does not know it (NixOS).
const LIBRARIES: [&str; 2] = ["libdxcore.so", "/usr/lib/wsl/lib/libdxcore.so"];

/// The oldest display driver model with CUDA for Linux.
const OLDEST_WDDM: u32 = 2700;

/// Files of a driver store that containers need, if they exist.
const COMPONENTS: &[&str] = &[
    "libcuda.so.1.1",
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1",
    "nvidia-smi",
    "nvcubins.bin",
];

/// Returns the driver stores of the usable adapters; empty if this is not a WSL2 host.
///
/// Upstream tries to load libdxcore on every host. Without /dev/dxg there is nothing to enumerate, so checking for that
/// device first saves other hosts a futile library search.
///
/// # Errors
/// `WSL environment detected but no adapters were found`.
pub fn detect() -> Result<Vec<WslDriver>> {
    if !Path::new("/dev/dxg").exists() {
        return Ok(Vec::new());
    }
    let mut found = LIBRARIES.iter().map(Path::new);
    let Some(adapters) = found.find_map(dxcore::adapters) else {
        debug!("/dev/dxg without libdxcore: not a WSL2 host");
        return Ok(Vec::new());
    };
    let drivers: Vec<_> = adapters.iter().filter_map(driver).collect();
    if drivers.is_empty() {
        let text = "WSL environment detected but no adapters were found";
        return Err(Error::new(ErrorKind::DriverUnavailable, text)
            .hint("install NVIDIA's driver on Windows, and see that nvidia-smi works in WSL"));
    }
    Ok(drivers)
}

fn driver(adapter: &Adapter) -> Option<WslDriver> {
    let store = &adapter.driver_store;
    if adapter.wddm < OLDEST_WDDM {
        debug!(
            "skipping {}: its driver is for WDDM {}",
            store.display(),
            adapter.wddm
        );
        return None;
    }
    let components: Vec<_> = COMPONENTS
        .iter()
        .filter(|name| store.join(name).exists())
        .map(|&name| name.to_owned())
        .collect();
    if components.is_empty() {
        debug!("skipping {}: no files of NVIDIA's", store.display());
        return None;
    }
    Some(WslDriver {
        store: HostPath::new(store),
        components,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_store_needs_a_component() {
        let dir = tempfile::tempdir().unwrap();
        let adapter = |wddm| Adapter {
            wddm,
            driver_store: dir.path().to_owned(),
        };
        assert_eq!(driver(&adapter(3000)), None);
        for name in ["nvidia-smi", "libcuda.so.1.1", "other"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let found = driver(&adapter(2700)).unwrap();
        assert_eq!(found.components, ["libcuda.so.1.1", "nvidia-smi"]);
        assert_eq!(found.store.as_path(), dir.path());
        assert_eq!(driver(&adapter(2600)), None);
    }
}
