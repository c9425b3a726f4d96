//! Implements the hooks without arguments: they limit what a container sees of the driver and of other GPUs.

use libnvc::Result;
use libnvc::plan::{Intent, Need, What};

use crate::arguments::GivenOptions;

/// Tells programs in the container not to create device nodes.
pub(super) fn params(_given: &GivenOptions) -> Result<Vec<Intent>> {
    let (need, what) = (Need::WherePermitted, What::DriverParams);
    Ok(vec![Intent { need, what }])
}

/// Hides other GPUs and MIG capabilities in the container's /proc/driver/nvidia.
pub(super) fn devices(_given: &GivenOptions) -> Result<Vec<Intent>> {
    Ok(vec![Intent::required(What::DriverDevices)])
}

/// Limits EGL to the container's GPUs. EGL works without the file: a read-only root must not prevent the container from
/// starting.
pub(super) fn profile(_given: &GivenOptions) -> Result<Vec<Intent>> {
    Ok(vec![Intent::best_effort(What::ProfileFile)])
}
