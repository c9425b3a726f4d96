//! Finds the driver stores of a WSL2 host, where the Windows driver replaces the Linux one.

use std::path::{Path, PathBuf};

use log::debug;

use super::DeviceRole;
use crate::error::{Error, ErrorKind, Result};
use crate::host::WslDriver;
use crate::host::query::{Message, QueryProgram, QueryRequest, Question, ask_once};
use crate::path::HostPath;
use crate::sys::dxcore::{self, Adapter};

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
pub(crate) fn detect() -> Result<Vec<WslDriver>> {
    detect_by(|| Ok(dxcore::of_host()))
}

/// Does the same for a session. If another program queries NVML, it also loads libdxcore: the caller may be static, and
/// unable to load a library.
///
/// # Errors
/// Those of [`detect`]; the process cannot be started, dies, or does not answer in time.
pub(crate) fn detect_for(program: &QueryProgram, request: &QueryRequest) -> Result<Vec<WslDriver>> {
    match program {
        QueryProgram::Path(_) => detect_by(|| ask(program, request)),
        QueryProgram::ThisProcess | QueryProgram::ThisExecutable | QueryProgram::Helper(_) => {
            detect()
        }
    }
}

fn ask(program: &QueryProgram, request: &QueryRequest) -> Result<Option<Vec<Adapter>>> {
    // libdxcore is part of the host, whatever the driver root is.
    let request = QueryRequest {
        root: "/".into(),
        library_search: Vec::new(),
        wsl_library: None,
        ..request.clone()
    };
    let found = ask_once(
        program,
        &request,
        Question::Adapters,
        |answer| match answer {
            Message::Adapters(found) => Some(found),
            _ => None,
        },
    )?;
    let adapter = |(wddm, driver_store)| Adapter {
        wddm,
        driver_store: PathBuf::from(driver_store),
    };
    Ok(found.map(|found: Vec<(u32, String)>| found.into_iter().map(adapter).collect()))
}

/// Returns true if the driver is that of Windows.
pub fn is_wsl() -> bool {
    Path::new(DeviceRole::Dxg.path()).exists()
}

fn detect_by(find: impl FnOnce() -> Result<Option<Vec<Adapter>>>) -> Result<Vec<WslDriver>> {
    if !is_wsl() {
        return Ok(Vec::new());
    }
    let Some(adapters) = find()? else {
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
