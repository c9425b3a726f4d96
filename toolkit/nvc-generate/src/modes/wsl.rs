//! Collects the GPUs of a WSL2 machine: one node serves them all, and the files are those of the Windows driver's store.

use libnvc::host::{DriverInfo, GpusAsked, search};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{Intent, Item, Link, Place, What};
use libnvc::request::{Placement, Request};
use libnvc::{ContainerPath, Error, ErrorKind, Result};

use crate::Find;
use crate::content::{Content, FoundDevice};
use crate::devices::empty_device;
use crate::driver::{self, nodes};

/// The library without which CUDA does not work.
const CUDA: &str = "libcuda.so.1.1";

pub(super) fn find(options: &Find, mut request: Request) -> Result<Content> {
    let session = driver::session(options, GpusAsked::None)?;
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            "no Windows driver: this is not a WSL2 machine",
        )
    };
    let wsl = session.wsl().ok_or_else(missing)?;
    let driver = search::of_store(session.root(), wsl);
    check(&driver)?;
    let device = if request.devices.ids.is_empty() {
        empty_device()
    } else {
        FoundDevice::new("all", vec![nodes(options).device("/dev/dxg")?])
    };
    // The driver store has no version to compare with.
    request.policy.cuda_compat = CudaCompatMode::Disabled;
    // Its files name each other by path.
    request.policy.placement = Placement::AsHost;
    let mut intents = Item::Whole(&driver).plan(&request);
    let program = wsl.store.join("nvidia-smi");
    if driver.files.iter().any(|file| file.path == program) {
        intents.push(Intent::best_effort(What::Link(Link {
            at: Place::At(ContainerPath::new("/usr/bin/nvidia-smi")),
            target: program.as_path().to_owned(),
            replaces: false,
        })));
    }
    let warnings = driver::on_host(&mut intents, options)?;
    Ok(Content {
        devices: vec![device],
        common: intents,
        warnings,
        ..Content::default()
    })
}

/// Refuses a store without CUDA: a specification of it would replace one that works.
fn check(driver: &DriverInfo) -> Result<()> {
    let mut files = driver.files.iter();
    if files.any(|file| file.path.file_name() == CUDA) {
        return Ok(());
    }
    let text = format!("failed to locate {CUDA}");
    Err(Error::new(ErrorKind::NotFound, text)
        .hint("install NVIDIA's driver on Windows again: its store lacks CUDA"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use libnvc::HostPath;
    use libnvc::host::{DriverRoot, WslDriver};

    use super::*;

    #[test]
    fn a_store_needs_cuda() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("store")).unwrap();
        let checked = || {
            let wsl = WslDriver {
                store: HostPath::new("/store"),
                components: Vec::new(),
            };
            check(&search::of_store(
                &DriverRoot::open(dir.path()).unwrap(),
                &wsl,
            ))
        };
        fs::write(dir.path().join("store/libnvidia-ml.so.1"), "").unwrap();
        let error = checked().unwrap_err();
        assert_eq!(error.message(), "failed to locate libcuda.so.1.1");
        fs::write(dir.path().join("store/libcuda.so.1.1"), "").unwrap();
        checked().unwrap();
    }
}
