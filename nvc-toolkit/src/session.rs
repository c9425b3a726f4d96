//! Asks the driver's NVML, or libcuda, in a process that is a fork of this program.
//!
//! A fork is faster than executing this program again. It copies memory that may hold the container's configuration,
//! which the host's driver may see.

use std::path::PathBuf;

use libnvc::Result;
use libnvc::host::query::{QueryProgram, QueryRequest};
use libnvc::host::{CudaFacts, DriverConfig, DriverRoot, DriverSession, cuda_facts};

/// Starts the query of the driver below a root.
///
/// # Errors
/// Those of [`DriverSession::open`].
pub(crate) fn open(root: PathBuf) -> Result<DriverSession> {
    DriverSession::open(&of(root))
}

/// Starts the query of the driver in a root that is already open.
///
/// # Errors
/// Those of [`DriverSession::open_in`].
pub(crate) fn open_in(root: DriverRoot) -> Result<DriverSession> {
    let config = of(root.path().to_owned());
    DriverSession::open_in(root, &config)
}

/// Asks libcuda instead of NVML.
///
/// # Errors
/// Those of [`cuda_facts`].
pub(crate) fn ask_cuda(root: PathBuf) -> Result<CudaFacts> {
    let config = of(root);
    let request = QueryRequest {
        root: config.root,
        uid: config.uid,
        gid: config.gid,
        wsl_library: None,
        deadline: config.deadline,
    };
    cuda_facts(&config.program, &request)
}

fn of(root: PathBuf) -> DriverConfig {
    DriverConfig {
        root,
        program: QueryProgram::ThisProcess,
        ..DriverConfig::default()
    }
}
