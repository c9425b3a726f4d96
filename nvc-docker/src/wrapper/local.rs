//! Queries this machine's driver for the classic back end: versions and GPUs.

use std::time::Duration;

use libnvc::Result;
use libnvc::host::query::{Query, QueryProgram, QueryRequest};
use libnvc::host::{DeviceInfo, DriverVersions};
use libnvc::require::{self, Requirement, Target};

use crate::cuda_version::CudaVersion;
use crate::device_id::Candidate;
use crate::failure::in_our_words;
use crate::libraries;

/// Time limit of NVML: a machine with many GPUs and without persistence mode is slow.
const DEADLINE: Duration = Duration::from_secs(30);

/// This machine's driver.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) versions: DriverVersions,
    devices: DeviceInfo,
}

/// A query of the driver that runs. Dropping it ends it.
#[derive(Debug)]
pub(super) struct LocalQuery(Query);

impl LocalQuery {
    /// Waits for the answer.
    ///
    /// # Errors
    /// `could not load NVML library`, `nvml: …`.
    pub(super) fn finish(self) -> Result<Local> {
        let reply = self.0.finish().map_err(|error| in_our_words(&error))?;
        Ok(Local {
            versions: reply.versions,
            devices: reply.devices,
        })
    }
}

impl Local {
    /// Starts to query NVML as an unprivileged user.
    ///
    /// # Errors
    /// `process creation failed: …`.
    pub(super) fn start() -> Result<LocalQuery> {
        let request = QueryRequest {
            root: "/".into(),
            user: None,
            library_search: Vec::new(),
            wsl_library: None,
            deadline: DEADLINE,
        };
        let query = Query::start(&QueryProgram::ThisProcess, &request)
            .map_err(|error| in_our_words(&error))?;
        Ok(LocalQuery(query))
    }

    /// Returns the GPUs that can be selected.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let gpus = self.devices.gpus.iter();
        gpus.map(|gpu| Candidate {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
        })
        .collect()
    }

    /// Returns the newest CUDA version that containers can use; None without the CUDA library, which they would get.
    pub(super) fn cuda(&self) -> Result<CudaVersion> {
        if libraries::are_there("libcuda.so.1")? {
            CudaVersion::parse(&self.versions.cuda)
        } else {
            Ok(CudaVersion(0, 0))
        }
    }

    /// Checks an image's requirements on the selected GPUs.
    ///
    /// # Errors
    /// `unsatisfied condition: …`, `invalid expression`.
    pub(super) fn require(&self, texts: &[&str], is_chosen: impl Fn(u32) -> bool) -> Result<()> {
        let requirements: Vec<_> = texts.iter().map(|text| Requirement::new(*text)).collect();
        let chosen = self.devices.gpus.iter().filter(|gpu| is_chosen(gpu.index));
        let targets: Vec<_> = chosen
            .map(|gpu| Target {
                arch: &gpu.arch,
                brand: &gpu.brand,
            })
            .collect();
        require::check(&requirements, &self.versions, &targets)
    }
}
