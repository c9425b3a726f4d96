//! Holds the result of a mode: what each device is in a container, as intents, from which a document or the plan for one
//! container is made. Sources are paths of the host.

use libnvc::plan::{Device, Intent, What};
use libnvc::survey::Host;
use libnvc::{ContainerPath, Error, ErrorKind, Result};

use crate::{Mode, Naming};

/// Tells other programs not to touch the container.
pub const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// Findings of a mode.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The requested devices.
    pub(crate) devices: Vec<FoundDevice>,
    /// Intents for every container with one of them.
    pub(crate) common: Vec<Intent>,
    /// Subsets of the devices, by part name.
    pub(crate) parts: Vec<(&'static str, Vec<FoundDevice>)>,
    pub(crate) warnings: Vec<String>,
    /// The driver and its devices, if NVML was queried.
    pub(crate) host: Option<Host>,
}

/// A device, and what a container gets with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FoundDevice {
    pub(crate) name: DeviceName,
    pub(crate) intents: Vec<Intent>,
}

/// The names of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeviceName {
    /// One name, whatever the naming.
    Word(String),
    /// A GPU's index and UUID.
    Gpu(String, Option<String>),
    /// A MIG device's.
    Mig(String, Option<String>),
}

impl FoundDevice {
    pub(crate) fn new(name: impl Into<String>, intents: Vec<Intent>) -> Self {
        let name = DeviceName::Word(name.into());
        Self { name, intents }
    }
}

impl DeviceName {
    /// Returns the name of each naming.
    pub(crate) fn by(&self, namings: &[Naming]) -> Vec<String> {
        let (prefix, index, uuid) = match self {
            Self::Word(word) => return vec![word.clone()],
            Self::Gpu(index, uuid) => ("gpu", index, uuid),
            Self::Mig(index, uuid) => ("mig", index, uuid),
        };
        let name = |naming: &Naming| match naming {
            Naming::Index => Some(index.clone()),
            Naming::TypeIndex => Some(format!("{prefix}{index}")),
            Naming::Uuid => uuid.clone(),
        };
        namings.iter().filter_map(name).collect()
    }
}

/// Checks that a container could use every device, and that there is one. `devices` are names, and whether a device has
/// nothing.
pub(crate) fn check<'a>(
    devices: impl Iterator<Item = (&'a str, bool)> + Clone,
    warnings: &[String],
    mode: Mode,
) -> Result<()> {
    if devices
        .clone()
        .all(|(name, is_empty)| name == "all" && is_empty)
    {
        let mut error = Error::new(
            ErrorKind::NotFound,
            "there is no device that a container could use",
        );
        if !warnings.is_empty() {
            error = error.with_cause(warnings.join("; "));
        }
        return Err(error.hint(lacking(mode)));
    }
    let mut devices = devices;
    if let Some((name, _)) = devices.find(|(_, is_empty)| *is_empty) {
        let missing = warnings.join("; ");
        let text = format!("device \"{name}\" has nothing that a container could use: {missing}");
        let hint = "nvidia-modprobe -c NUMBER makes the node /dev/nvidiaNUMBER";
        return Err(Error::new(ErrorKind::Malformed, text).hint(hint));
    }
    Ok(())
}

/// Returns what a machine without devices lacks.
fn lacking(mode: Mode) -> &'static str {
    match mode {
        Mode::Gdrcopy => "load the kernel module gdrdrv: its node is /dev/gdrdrv",
        Mode::Gds => "load the kernel module nvidia-fs: its nodes are /dev/nvidia-fsN",
        Mode::Imex => "nvidia-modprobe -i N makes /dev/nvidia-caps-imex-channels/channelN",
        Mode::Mofed => {
            "load the kernel modules ib_uverbs and rdma_cm: their nodes are in /dev/infiniband"
        }
        Mode::Nvswitch => {
            "only the driver of a machine with NVSwitches has nodes /dev/nvidia-nvswitchN"
        }
        _ => "nvidia-smi -L lists the GPUs; one in MIG mode needs MIG devices",
    }
}

/// Sorts nodes by depth, then by name; they come before everything else.
pub(crate) fn sort(intents: &mut [Intent]) {
    intents.sort_by_cached_key(|intent| match &intent.what {
        What::Device(Device { at, .. }) => (at.as_path().components().count(), at.clone()),
        _ => (usize::MAX, ContainerPath::new("")),
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_what_is_missing() {
        for (mode, word) in [
            (Mode::Imex, "channelN"),
            (Mode::Gdrcopy, "gdrdrv"),
            (Mode::Gds, "nvidia-fs"),
            (Mode::Mofed, "ib_uverbs"),
            (Mode::Nvswitch, "nvidia-nvswitchN"),
            (Mode::Nvml, "nvidia-smi -L"),
        ] {
            let error = check([("all", true)].into_iter(), &[], mode).unwrap_err();
            assert!(error.advice().unwrap().contains(word), "{mode:?}");
        }
    }
}
