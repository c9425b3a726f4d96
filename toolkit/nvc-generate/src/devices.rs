//! Selects GPUs and MIG devices.

use libnvc::host::nvcaps::MigMinors;
use libnvc::host::{CharDrivers, DeviceInfo, DriverRoot, Gpu, MigDevice, drm, nodes};
use libnvc::plan::{Env, FileMode, Intent, Need, Part, PartKind, What};
use libnvc::select::select_devices;
use libnvc::survey::{Chosen, MigGrant};
use libnvc::{ContainerPath, ErrorKind, HostPath, Result};

use crate::Find;
use crate::content::{DeviceName, FoundDevice};

/// The suffixes of additional specifications, by memory coherence.
pub const PARTS: [&str; 2] = ["coherent", "noncoherent"];

/// Selects the devices that `ids` names, and finds their nodes.
pub(super) fn choose(
    options: &Find,
    ids: &[String],
    info: &DeviceInfo,
    dev_root: &DriverRoot,
    drivers: &CharDrivers,
) -> Result<Chosen> {
    let selection = select_devices(&info.gpus, &info.failed, ids).map_err(|error| {
        // Not found means that the machine has no device at all.
        match error.kind() {
            ErrorKind::NotFound => error.with_kind(ErrorKind::InvalidArgument),
            _ => error,
        }
    })?;
    let mut finder = Finder {
        dev_root,
        drivers,
        displays: options.displays,
        minors: None,
        chosen: Chosen::default(),
    };
    // All of a machine are those that a container could use.
    let is_divided = |gpu: &Gpu| selection.all && info.divided.contains(&gpu.index);
    for gpu in selection.whole.iter().filter(|gpu| !is_divided(gpu)) {
        finder.gpu(gpu);
    }
    for (gpu, mig) in &selection.migs {
        finder.mig(gpu, mig)?;
    }
    Ok(finder.chosen)
}

/// Returns a planned device.
pub(super) fn found(part: Part) -> FoundDevice {
    let is_mig = part.kind == PartKind::MigDevice;
    let mut intents = part.intents;
    if !is_mig {
        permissions(&mut intents);
    }
    let mut names = part.names.into_iter();
    let (index, uuid) = (names.next().unwrap_or_default(), names.next());
    let name = if is_mig {
        DeviceName::Mig(index, uuid)
    } else {
        DeviceName::Gpu(index, uuid)
    };
    FoundDevice { name, intents }
}

/// Splits the whole GPUs among devices by memory coherence.
pub(super) fn by_coherence(
    info: &DeviceInfo,
    devices: &[FoundDevice],
) -> Vec<(&'static str, Vec<FoundDevice>)> {
    let parts = PARTS.into_iter().zip([true, false]).map(|(part, wanted)| {
        let is_one = |device: &&FoundDevice| {
            info.gpus.iter().any(|gpu| {
                let known = info.coherent.iter().find(|(index, _)| *index == gpu.index);
                let is_so = known.is_some_and(|(_, coherent)| *coherent == wanted);
                is_so && matches!(&device.name, DeviceName::Gpu(index, _) if *index == gpu.index.to_string())
            })
        };
        (part, devices.iter().filter(is_one).cloned().collect())
    });
    parts
        .filter(|(_, devices): &(_, Vec<_>)| !devices.is_empty())
        .collect()
}

/// Returns the device `none`, which requests no GPU.
pub(super) fn empty_device() -> FoundDevice {
    let variable = What::Env(Env {
        name: "NVCT_EMPTY_DEVICE".into(),
        value: String::new(),
    });
    FoundDevice::new("none", vec![Intent::required(variable)])
}

struct Finder<'a> {
    dev_root: &'a DriverRoot,
    drivers: &'a CharDrivers,
    displays: bool,
    minors: Option<MigMinors>,
    chosen: Chosen,
}

impl Finder<'_> {
    fn gpu(&mut self, gpu: &Gpu) {
        let mut gpu = Gpu {
            node: self.node(gpu),
            ..gpu.clone()
        };
        self.add_displays(&mut gpu);
        self.chosen.gpus.push(gpu);
    }

    /// DRM nodes belong to the whole GPU. A MIG device needs them if its profile is one for graphics.
    fn mig(&mut self, gpu: &Gpu, mig: &MigDevice) -> Result<()> {
        let node = self.node(gpu);
        let minors = match self.minors.take() {
            Some(minors) => minors,
            None => MigMinors::read()?,
        };
        let minors = self.minors.insert(minors);
        let missing = &mut self.chosen.missing;
        let tree = (self.dev_root, self.drivers);
        let access = minors.access(gpu.minor, mig, tree, missing)?;
        let mut grant = MigGrant::from((gpu, mig));
        grant.access = access;
        grant.parent.node = node;
        match mig.graphics {
            Some(true) => self.add_displays(&mut grant.parent),
            None if self.displays => {
                let text = format!(
                    "NVML does not tell the profile of MIG device {}:{}: it gets no nodes for graphics",
                    gpu.index, mig.index
                );
                self.chosen.missing.push(text);
            }
            _ => {}
        }
        self.chosen.migs.push(grant);
        Ok(())
    }

    /// Adds a GPU's DRM nodes, if they are wanted.
    fn add_displays(&mut self, gpu: &mut Gpu) {
        if self.displays {
            let found = drm::displays(&gpu.busid, self.dev_root, self.drivers);
            self.chosen.missing.extend(found.missing);
            (gpu.drm_nodes, gpu.drm_links) = (found.nodes, found.links);
        }
    }

    fn node(&mut self, gpu: &Gpu) -> Option<libnvc::host::DeviceNode> {
        let path = HostPath::new(format!("/dev/nvidia{}", gpu.minor));
        let node = nodes::at(self.dev_root, &path, self.drivers);
        let missing = &mut self.chosen.missing;
        node.map_err(|error| missing.push(error.message())).ok()
    }
}

/// The directories of nodes that old versions of crun create so that only root can enter them.
const CLOSED: [&str; 2] = ["/dev/dri", "/dev/nvidia-caps"];

/// Adds permissions of the nodes' directories.
pub(crate) fn permissions(intents: &mut Vec<Intent>) {
    let mut directories: Vec<ContainerPath> = Vec::new();
    for intent in intents.iter() {
        if let What::Device(device) = &intent.what {
            let directory = device.at.parent();
            if CLOSED.contains(&directory.to_string().as_str()) && !directories.contains(&directory)
            {
                directories.push(directory);
            }
        }
    }
    intents.extend(directories.into_iter().map(|at| Intent {
        need: Need::WherePermitted,
        what: What::Mode(FileMode { at, mode: 0o755 }),
    }));
}

#[cfg(test)]
mod tests {
    use libnvc::host::DeviceNode;
    use libnvc::plan::Device;

    use super::*;

    #[test]
    fn only_closed_directories_get_permissions() {
        let node = |path: &str| {
            let node = DeviceNode::new(path, 195, 0);
            Intent::required(What::Device(Device {
                source: HostPath::new(path),
                number: node.number,
                owner: None,
                at: ContainerPath::new(path),
                bind: true,
                allow: true,
            }))
        };
        let mut intents = [
            "0",
            "-caps/nvidia-cap1",
            "-caps/nvidia-cap2",
            "-caps-imex-channels/channel0",
        ]
        .map(|name| node(&format!("/dev/nvidia{name}")))
        .to_vec();
        intents.push(node("/dev/dri/card0"));
        permissions(&mut intents);
        let modes = intents.iter().filter_map(|intent| match &intent.what {
            What::Mode(file) => Some(file.at.to_string()),
            _ => None,
        });
        assert_eq!(modes.collect::<Vec<_>>(), ["/dev/nvidia-caps", "/dev/dri"]);
    }
}
