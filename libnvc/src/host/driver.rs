//! Holds what discovery of the driver needs of the environment.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::caller;
use crate::error::Result;
use crate::host::{DriverRoot, search};
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
