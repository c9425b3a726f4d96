//! Puts together what is known of the driver: its files, sockets and common devices.
//!
//! Each part has a function of its own, for callers that need only some; [`discover`] asks for all in upstream's order, so
//! that the error reported is the same.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::Result;
use crate::host::{
    DriverFile, DriverInfo, DriverRoot, DriverVersions, LibraryCandidates, SharedDevice, WslDriver,
    binaries, firmware, ipc, libraries, nodes,
};
use crate::options::DriverOptions;
use crate::path::HostPath;

/// What discovery takes from the caller's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverEnvironment {
    /// `PATH`
    pub path: Option<OsString>,
    /// `CUDA_MPS_PIPE_DIRECTORY`
    pub mps_pipe_directory: Option<PathBuf>,
}

impl DriverEnvironment {
    /// The process's environment; empty variables count as unset but for `PATH`.
    pub fn of_process() -> Self {
        let mps = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
        Self {
            path: std::env::var_os("PATH"),
            mps_pipe_directory: mps.filter(|value| !value.is_empty()).map(PathBuf::from),
        }
    }
}

/// Reports what `discover` would fail on, for callers that need nothing but versions and GPUs.
///
/// # Errors
/// A loader cache that the caller named and that is missing or malformed; `environment variable PATH not found`.
pub fn check(
    root: &DriverRoot,
    ldcache: Option<&HostPath>,
    environment: &DriverEnvironment,
) -> Result<()> {
    if let Some(ldcache) = ldcache {
        libraries::check_cache(root, ldcache)?;
    }
    binaries::checked(environment.path.as_deref()).map(drop)
}

/// What does not depend on the driver's version, and so is looked for while NVML is busy finding that out.
#[derive(Debug)]
pub struct Unversioned {
    binaries: Result<Vec<DriverFile>>,
    ipcs: Vec<DriverFile>,
    devices: Result<Vec<SharedDevice>>,
}

impl Unversioned {
    /// Finds it; failures are kept until they are due. `wsl` is empty but on WSL2 hosts.
    pub fn find(
        root: &DriverRoot,
        options: DriverOptions,
        environment: &DriverEnvironment,
        wsl: &[WslDriver],
    ) -> Self {
        let native = wsl.is_empty();
        Self {
            binaries: binaries::find(root, environment.path.as_deref(), options, wsl),
            ipcs: ipc::find(root, environment.mps_pipe_directory.as_deref(), options),
            devices: if native {
                Ok(nodes::find(root, options))
            } else {
                nodes::find_dxg().map(|node| vec![node])
            },
        }
    }
}

/// Finds the rest and puts everything together. `wsl` is empty but on WSL2 hosts.
///
/// # Errors
/// `environment variable PATH not found`; under WSL2 `stat failed: /dev/dxg: <cause>`.
pub(super) fn discover(
    root: &DriverRoot,
    options: DriverOptions,
    candidates: &LibraryCandidates,
    unversioned: &Unversioned,
    versions: DriverVersions,
    wsl: &[WslDriver],
) -> Result<DriverInfo> {
    let libraries = candidates.select(&versions.driver);
    let mut files = unversioned.binaries.clone()?;
    files.extend(libraries);
    if wsl.is_empty() && !options.contains(DriverOptions::NO_GSP_FIRMWARE) {
        files.extend(firmware::find(root, &versions.driver));
    }
    files.extend(unversioned.ipcs.iter().cloned());
    Ok(DriverInfo {
        files,
        graphics: Vec::new(),
        graphics_links: Vec::new(),
        devices: unversioned.devices.clone()?,
        wsl: wsl.first().cloned(),
        versions,
    })
}
