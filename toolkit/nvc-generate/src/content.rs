//! Holds the result of a mode: the edits of each device, from which a document or the edits for one container are made.

use libnvc::survey::Host;
use libnvc::{Error, ErrorKind, Result};

use crate::draft::{Draft, DraftDevice};

/// Tells other programs not to touch the container.
pub const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// Findings of a mode.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The requested devices, each once for each naming.
    pub(crate) devices: Vec<DraftDevice>,
    /// Edits for every container with one of them.
    pub(crate) common: Draft,
    /// Subsets of the devices, by part name.
    pub(crate) parts: Vec<(&'static str, Vec<DraftDevice>)>,
    pub(crate) warnings: Vec<String>,
    /// The driver and its devices, if NVML was queried.
    pub(crate) host: Option<Host>,
}

/// Checks that a container could use every device, and that there is one.
pub(crate) fn check(devices: &[DraftDevice], warnings: &[String]) -> Result<()> {
    let is_nothing = |device: &DraftDevice| device.name == "all" && device.draft.is_empty();
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
    if let Some(empty) = devices.find(|device| device.draft.is_empty()) {
        let (name, missing) = (&empty.name, warnings.join("; "));
        let text = format!("device \"{name}\" has nothing that a container could use: {missing}");
        let hint = "nvidia-modprobe -c NUMBER makes the node /dev/nvidiaNUMBER";
        return Err(Error::new(ErrorKind::Malformed, text).hint(hint));
    }
    Ok(())
}
