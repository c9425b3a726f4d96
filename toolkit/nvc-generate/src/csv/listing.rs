//! Lists the GPUs of a Jetson with NVML.

use libnvc::Error;
use libnvc::host::ListedGpu;

/// NVML's list of GPUs.
#[derive(Debug)]
pub enum Listing {
    /// There is no NVML, or it was not asked.
    Unknown,
    /// NVML failed.
    Failed(Error),
    /// The GPUs, including those that NVML fails on.
    Gpus(Vec<ListedGpu>),
}
