//! Holds the result of a mode: the edits of each device, from which a document or the edits for one container are made.

use libnvc::survey::Host;
use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::{Device, Edits};

/// Tells other programs not to touch the container.
pub const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// Findings of a mode.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The requested devices, each once for each naming.
    pub(crate) devices: Vec<Device>,
    /// Edits for every container with one of them.
    pub(crate) common: Edits,
    /// Subsets of the devices, by part name.
    pub(crate) parts: Vec<(&'static str, Vec<Device>)>,
    pub(crate) warnings: Vec<String>,
    /// The driver and its devices, if NVML was queried.
    pub(crate) host: Option<Host>,
}

/// Checks that a container could use every device, and that there is one.
pub(crate) fn check(devices: &[Device], warnings: &[String]) -> Result<()> {
    let is_nothing = |device: &Device| device.name == "all" && device.container_edits.is_empty();
    if devices.iter().all(is_nothing) {
        let mut error = Error::new(
            ErrorKind::NotFound,
            "there is no device that a container could use",
        );
        if !warnings.is_empty() {
            error = error.with_cause(warnings.join("; "));
        }
        return Err(error.hint("nvidia-smi -L lists the GPUs; one in MIG mode needs MIG devices"));
    }
    let mut devices = devices.iter();
    if let Some(empty) = devices.find(|device| device.container_edits.is_empty()) {
        let (name, missing) = (&empty.name, warnings.join("; "));
        let text = format!("device \"{name}\" has nothing that a container could use: {missing}");
        let hint = "nvidia-ctk system create-device-nodes --control-devices, or nvidia-modprobe, makes nodes";
        return Err(Error::new(ErrorKind::Malformed, text).hint(hint));
    }
    Ok(())
}
