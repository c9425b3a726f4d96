//! Decides whether GPUs are added by a Jetson's file lists, by upstream's rule: NVML reports an integrated GPU, or there
//! are the files of a Tegra system and NVML cannot be loaded.
//!
//! Each of the two alone misleads. A Tegra system may be set up for its discrete GPU only, which is then a GPU like any
//! other; and an image that is not NVIDIA's lacks the files. So NVML decides, but it is asked only for a container that
//! requests GPUs.

use std::path::Path;

use libnvc::Result;
use libnvc::host::query::QueryProgram;
use libnvc::host::{DriverRoot, DriverSession, GpusAsked, ListedGpu, search};

use crate::session;

/// How libnvc's error begins if NVML cannot be loaded.
const NOT_LOADED: &str = "load library failed";

/// Decides by NVML's list of GPUs.
pub fn is_jetson(has_tegra_files: bool, listed: &Result<Vec<ListedGpu>>) -> bool {
    match listed {
        Ok(gpus) => gpus.iter().any(ListedGpu::is_named_as_integrated),
        Err(error) => has_tegra_files && error.message().starts_with(NOT_LOADED),
    }
}

/// Decides for the driver in `root`; asks its NVML with `program` if it has one.
pub fn is_jetson_here(root: &Path, program: &QueryProgram) -> bool {
    is_jetson_without_nvml(root) || {
        let open = session::open(root.to_owned(), None, Vec::new(), program, GpusAsked::All);
        let listed = open.and_then(|mut session| listed(&mut session));
        is_jetson(is_tegra(root), &listed)
    }
}

/// Returns true if nothing can be asked: on a Tegra system whose driver has no NVML.
pub fn is_jetson_without_nvml(root: &Path) -> bool {
    is_tegra(root)
        && DriverRoot::open(root).is_ok_and(|root| !search::has_library(&root, "libnvidia-ml.so.1"))
}

/// Waits for NVML's list of GPUs.
///
/// # Errors
/// Those of [`DriverSession::ready`] and [`DriverSession::listed`].
pub fn listed(session: &mut DriverSession) -> Result<Vec<ListedGpu>> {
    session.ready()?;
    session.listed()
}

/// Returns true if the host, or the root of its driver, has the files of a Tegra system.
pub fn is_tegra(root: &Path) -> bool {
    has_tegra_files(Path::new("/")) || has_tegra_files(root)
}

/// Returns true if a root has the files of a Tegra system.
pub fn has_tegra_files(root: &Path) -> bool {
    let release = root.join("etc/nv_tegra_release");
    let is_file = std::fs::metadata(release).is_ok_and(|facts| facts.is_file());
    is_file || {
        let family = std::fs::read(root.join("sys/devices/soc0/family")).unwrap_or_default();
        family
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"tegra"))
    }
}

#[cfg(test)]
mod tests {
    use libnvc::{Error, ErrorKind};

    use super::*;

    fn gpu(model: &str) -> ListedGpu {
        ListedGpu {
            index: 0,
            uuid: None,
            model: Some(model.into()),
            arch: None,
            // By its address, which many discrete GPUs have.
            integrated: Some(true),
            gpu: Err(Error::new(ErrorKind::DriverFailed, "x")),
        }
    }

    #[test]
    fn nvml_decides_and_files_count_only_without_it() {
        let failed = |text: &str| Err(Error::new(ErrorKind::DriverUnavailable, text));
        for (listed, with_files, without) in [
            (Ok(vec![gpu("NVIDIA RTX A6000")]), false, false),
            (Ok(vec![gpu("Orin (nvgpu)")]), true, true),
            (Ok(vec![gpu("NVIDIA Thor"), gpu("NVIDIA L4")]), true, true),
            (Ok(vec![]), false, false),
            (
                failed("load library failed: libnvidia-ml.so.1"),
                true,
                false,
            ),
            (failed("nvml error: driver not loaded"), false, false),
        ] {
            let found = [true, false].map(|files| is_jetson(files, &listed));
            assert_eq!(found, [with_files, without], "{listed:?}");
        }
    }
}
