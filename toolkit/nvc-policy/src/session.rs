//! Queries NVML or libcuda in a separate process, which runs a program that the caller names.
//!
//! The runtime and its hook fork, which is faster than executing a program. A fork copies memory that may hold the
//! container's configuration, which the host's driver may see. nvidia-ctk is static and can load no library: it executes
//! nvc-query.

use std::path::PathBuf;

use libnvc::host::query::{QueryProgram, QueryRequest};
use libnvc::host::{CudaFacts, DeviceInfo, DriverConfig, DriverSession, GpusAsked, cuda_facts};
use libnvc::{HostPath, Result, caller};

/// Starts `program`'s query of the driver below a root about these GPUs, with the nodes of another root if that one has
/// none. Looks for NVML in `directories` below the root first.
///
/// # Errors
/// Those of [`DriverSession::open`].
pub fn open(
    root: PathBuf,
    dev_root: Option<PathBuf>,
    directories: Vec<HostPath>,
    program: &QueryProgram,
    gpus: GpusAsked,
) -> Result<DriverSession> {
    let config = DriverConfig {
        gpus,
        dev_root,
        library_search: directories,
        ..of(root, program)
    };
    DriverSession::open(&config, None)
}

/// Names of the display adapter of a DGX Station, which no container can compute with.
const DISPLAY_ADAPTERS: [&str; 2] = ["DGX Display", "NVIDIA DGX Display"];

/// Waits for the GPUs, without display adapters, which upstream's toolkit leaves out too.
///
/// # Errors
/// Those of [`DriverSession::devices`].
pub fn devices(session: &mut DriverSession) -> Result<DeviceInfo> {
    let mut info = session.devices()?;
    info.gpus
        .retain(|gpu| !DISPLAY_ADAPTERS.contains(&gpu.model.as_str()));
    Ok(info)
}

/// Asks libcuda instead of NVML.
///
/// # Errors
/// Those of [`cuda_facts`].
pub fn ask_cuda(root: PathBuf, program: &QueryProgram) -> Result<CudaFacts> {
    let config = of(root, program);
    let request = QueryRequest {
        root: config.root,
        user: config.user,
        dev_root: None,
        library_search: Vec::new(),
        wsl_library: None,
        deadline: config.deadline,
    };
    cuda_facts(&config.program, &request)
}

fn of(root: PathBuf, program: &QueryProgram) -> DriverConfig {
    DriverConfig {
        root,
        program: program.clone(),
        deadline: DriverConfig::deadline_of(caller::variable("NVC_DRIVER_TIMEOUT").as_deref()),
        ..DriverConfig::default()
    }
}
