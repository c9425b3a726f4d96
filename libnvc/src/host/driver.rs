//! Holds what discovery of the driver needs of the environment, and what is found while NVML is still working.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::caller;
use crate::error::Result;
use crate::host::{
    CharDrivers, DriverFile, DriverRoot, SharedDevice, WslDriver, ipc, nodes, search,
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

/// Returns the error that finding the files would return, for callers that need only versions and GPUs.
///
/// # Errors
/// A loader cache named by the caller that is missing or malformed; `environment variable PATH not found`.
pub(crate) fn check(
    root: &DriverRoot,
    ldcache: Option<&HostPath>,
    environment: &DriverEnvironment,
) -> Result<()> {
    if let Some(ldcache) = ldcache {
        search::read_cache(root, ldcache)?;
    }
    search::path_of(environment.path.as_deref()).map(drop)
}

/// Sockets and devices, which do not depend on the driver's version.
#[derive(Debug)]
pub(super) struct UnversionedFiles {
    pub(super) ipcs: Vec<DriverFile>,
    pub(super) devices: Result<Vec<SharedDevice>>,
}

impl UnversionedFiles {
    /// Finds them and keeps errors until they are due. `wsl` is empty except on WSL2 hosts.
    pub(super) fn find(
        root: &DriverRoot,
        options: DriverOptions,
        environment: &DriverEnvironment,
        wsl: &[WslDriver],
    ) -> Self {
        Self {
            ipcs: ipc::find(root, environment.mps_pipe_directory.as_deref(), options),
            devices: if wsl.is_empty() {
                Ok(nodes::find(root, options, &CharDrivers::discover()))
            } else {
                nodes::find_dxg().map(|node| vec![node])
            },
        }
    }
}
