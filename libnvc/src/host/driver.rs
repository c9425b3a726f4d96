//! Collects the driver's files, sockets and shared devices.
//!
//! Each part has its own function, for callers that need only some. [`discover`] calls them in upstream's order, so
//! that it reports the same error first.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::caller;
use crate::error::Result;
use crate::host::{
    CharDrivers, DriverFile, DriverInfo, DriverRoot, DriverVersions, LibraryCandidates,
    SharedDevice, WslDriver, binaries, firmware, ipc, libraries, nodes,
};
use crate::options::DriverOptions;
use crate::path::HostPath;

/// Environment variables that discovery uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverEnvironment {
    /// `PATH`
    pub path: Option<OsString>,
    /// `CUDA_MPS_PIPE_DIRECTORY`
    pub mps_pipe_directory: Option<PathBuf>,
}

impl DriverEnvironment {
    /// Reads the process's environment; empty variables count as unset, except `PATH`.
    pub(crate) fn of_process() -> Self {
        let mps = caller::variable("CUDA_MPS_PIPE_DIRECTORY");
        Self {
            path: std::env::var_os("PATH"),
            mps_pipe_directory: mps.filter(|value| !value.is_empty()).map(PathBuf::from),
        }
    }
}

/// Returns the error that `discover` would return, for callers that need only versions and GPUs.
///
/// # Errors
/// A loader cache named by the caller that is missing or malformed; `environment variable PATH not found`.
pub(crate) fn check(
    root: &DriverRoot,
    ldcache: Option<&HostPath>,
    environment: &DriverEnvironment,
) -> Result<()> {
    if let Some(ldcache) = ldcache {
        libraries::check_cache(root, ldcache)?;
    }
    binaries::checked(environment.path.as_deref()).map(drop)
}

/// Files that do not depend on the driver's version, found while NVML is still working.
#[derive(Debug)]
pub(crate) struct UnversionedFiles {
    binaries: Result<Vec<DriverFile>>,
    ipcs: Vec<DriverFile>,
    devices: Result<Vec<SharedDevice>>,
}

impl UnversionedFiles {
    /// Finds them and keeps errors until they are due. `wsl` is empty except on WSL2 hosts.
    pub(crate) fn find(
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
                Ok(nodes::find(root, options, &CharDrivers::discover()))
            } else {
                nodes::find_dxg().map(|node| vec![node])
            },
        }
    }
}

/// Finds the version-dependent rest and returns everything. `wsl` is empty except on WSL2 hosts.
///
/// # Errors
/// `environment variable PATH not found`; under WSL2 `stat failed: /dev/dxg: <cause>`.
pub(super) fn discover(
    root: &DriverRoot,
    options: DriverOptions,
    candidates: &LibraryCandidates,
    unversioned: &UnversionedFiles,
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
        directories: Vec::new(),
        daemons: Vec::new(),
        devices: unversioned.devices.clone()?,
        wsl: wsl.first().cloned(),
        versions,
    })
}
