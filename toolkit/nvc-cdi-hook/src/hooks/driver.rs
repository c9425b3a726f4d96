//! Implements the hooks without arguments: they limit what a container sees of the driver and of other GPUs.

use libnvc::Result;
use libnvc::plan::{DriverProc, EglDevices, EglProfile, Intent, Need, ProcDevices, What};
use nvc_options::Given;

/// Tells programs in the container not to create device nodes.
pub(super) fn params(_given: &Given) -> Result<Vec<Intent>> {
    let need = Need::WherePermitted;
    let what = What::DriverProc(DriverProc {
        no_new_nodes: true,
        devices: ProcDevices::All,
    });
    Ok(vec![Intent { need, what }])
}

/// Hides other GPUs and MIG capabilities in the container's /proc/driver/nvidia.
pub(super) fn devices(_given: &Given) -> Result<Vec<Intent>> {
    let shown = DriverProc {
        no_new_nodes: false,
        devices: ProcDevices::Own,
    };
    Ok(vec![Intent::required(What::DriverProc(shown))])
}

/// Limits EGL to the container's GPUs. EGL works without the file: a read-only root must not prevent the container from
/// starting.
pub(super) fn profile(_given: &Given) -> Result<Vec<Intent>> {
    let devices = EglDevices::Own;
    let profile = What::EglProfile(EglProfile { devices });
    Ok(vec![Intent::best_effort(profile)])
}
