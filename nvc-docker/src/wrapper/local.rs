//! Queries this machine's driver for the classic back end: versions and GPUs.

use std::path::Path;
use std::time::Duration;

use libnvc::Result;
use libnvc::host::query::QueryProgram;
use libnvc::host::search;
use libnvc::host::{DeviceInfo, DriverConfig, DriverRoot, DriverSession, DriverVersions, Gpu};
use libnvc::require::{self, Requirement};

use crate::cuda_version::CudaVersion;
use crate::device_id::Candidate;
use crate::failure::in_our_words;

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
pub(super) struct LocalQuery(DriverSession);

impl LocalQuery {
    /// Waits for the answer.
    ///
    /// # Errors
    /// `could not load NVML library`, `nvml: …`.
    pub(super) fn finish(mut self) -> Result<Local> {
        let mut reply = || {
            let versions = self.0.reported_versions()?;
            let devices = self.0.devices()?;
            Ok(Local { versions, devices })
        };
        reply().map_err(|error| in_our_words(&error))
    }
}

impl Local {
    /// Starts to query NVML as an unprivileged user.
    ///
    /// # Errors
    /// `process creation failed: …`.
    pub(super) fn start() -> Result<LocalQuery> {
        let config = DriverConfig {
            program: QueryProgram::ThisProcess,
            deadline: DEADLINE,
            ..DriverConfig::default()
        };
        let session = DriverSession::open(&config, None).map_err(|error| in_our_words(&error))?;
        Ok(LocalQuery(session))
    }

    /// Returns the driver by a query that was started ahead, or else by a new one.
    pub(super) fn of(ahead: Option<Result<LocalQuery>>) -> Result<Self> {
        ahead.unwrap_or_else(Self::start)?.finish()
    }

    /// Returns the GPUs that can be selected.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let gpus = self.devices.gpus.iter();
        gpus.map(|gpu| Candidate {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
            busid: gpu.busid.clone(),
        })
        .collect()
    }

    /// Returns the newest CUDA version that containers can use; None without the CUDA library, which they would get.
    pub(super) fn cuda(&self) -> Result<CudaVersion> {
        let root = DriverRoot::open(Path::new("/"))?;
        if search::has_library(&root, "libcuda.so.1") {
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
        let gpus = self.devices.gpus.iter();
        let chosen: Vec<_> = gpus.filter(|gpu| is_chosen(gpu.index)).collect();
        require(texts, &self.versions, &chosen)
    }
}

/// Checks an image's requirements on a driver and GPUs.
pub(super) fn require(texts: &[&str], versions: &DriverVersions, gpus: &[&Gpu]) -> Result<()> {
    let requirements: Vec<_> = texts.iter().map(|text| Requirement::new(*text)).collect();
    require::check(&requirements, versions, gpus)
}
