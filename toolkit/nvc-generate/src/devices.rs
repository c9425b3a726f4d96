//! Selects GPUs and MIG devices.

use std::fmt;
use std::path::Path;

use libnvc::host::nvcaps::MigMinors;
use libnvc::host::{CharDrivers, DeviceInfo, DeviceNode, DriverRoot, Gpu, MigDevice, drm, nodes};
use libnvc::plan::{Env, FileMode, Intent, Need, Part, PartKind, What};
use libnvc::request::Request;
use libnvc::select::select_devices;
use libnvc::survey::{Chosen, MigGrant};
use libnvc::{ContainerPath, Error, ErrorKind, HostPath, Result};

use crate::Find;
use crate::content::{DeviceName, FoundDevice};

/// The suffixes of additional specifications, by memory coherence.
pub const PARTS: [&str; 2] = ["coherent", "noncoherent"];

/// Selects the devices that a request names, and finds their nodes. If those of a specification are all that there are,
/// one without all of its parts is left out with a warning.
///
/// # Errors
/// A name is unknown; a part of a device is missing that is named or for a container, or of each.
pub(super) fn choose(
    options: &Find,
    request: &Request,
    info: &DeviceInfo,
    dev_root: &DriverRoot,
    drivers: &CharDrivers,
) -> Result<Chosen> {
    let selection = select_devices(&info.gpus, &info.failed, &request.devices.ids);
    let selection = selection.map_err(|error| {
        // Not found means that the machine has no device at all.
        match error.kind() {
            ErrorKind::NotFound => error.with_kind(ErrorKind::InvalidArgument),
            _ => error,
        }
    })?;
    let is_demanded = request.policy.demand_nodes;
    let mut finder = Finder {
        dev_root,
        drivers,
        displays: options.displays,
        // In a container of our making, the caller's /proc may show its own devices only.
        files: is_demanded || options.driver_root == Path::new("/"),
        is_demanded,
        minors: match selection.migs[..] {
            [] => MigMinors::default(),
            _ => MigMinors::read()?,
        },
        chosen: Chosen::default(),
    };
    let mut incomplete = None;
    let mut keep = |found: Result<()>, missing: &mut Vec<String>| match found {
        Err(error) if selection.all && !is_demanded => {
            missing.push(format!("left out: {}", error.message()));
            incomplete.get_or_insert(error);
            Ok(())
        }
        other => other,
    };
    // All of a machine are those that a container could use.
    let is_divided = |gpu: &Gpu| selection.all && info.divided.contains(&gpu.index);
    for gpu in selection.whole.iter().filter(|gpu| !is_divided(gpu)) {
        let found = finder.gpu(gpu);
        keep(found, &mut finder.chosen.missing)?;
    }
    for (gpu, mig) in &selection.migs {
        let found = finder.mig(gpu, mig);
        keep(found, &mut finder.chosen.missing)?;
    }
    match incomplete {
        Some(error) if finder.chosen.gpus.is_empty() && finder.chosen.migs.is_empty() => Err(error),
        _ => Ok(finder.chosen),
    }
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
    /// Look for the files of capabilities.
    files: bool,
    is_demanded: bool,
    minors: MigMinors,
    chosen: Chosen,
}

impl Finder<'_> {
    fn gpu(&mut self, gpu: &Gpu) -> Result<()> {
        let mut gpu = gpu.clone();
        gpu.node = self.complete(&gpu, format_args!("GPU {}", gpu.index), Vec::new())?;
        self.add_displays(&mut gpu);
        self.chosen.gpus.push(gpu);
        Ok(())
    }

    /// DRM nodes belong to the whole GPU. A MIG device needs them if its profile is one for graphics.
    fn mig(&mut self, gpu: &Gpu, mig: &MigDevice) -> Result<()> {
        let name = format!("MIG device {}:{}", gpu.index, mig.index);
        let mut missing = Vec::new();
        let tree = (self.dev_root, self.drivers);
        let access = self.minors.access(gpu.minor, mig, tree, &mut missing);
        let access = access.unwrap_or_else(|error| {
            missing.push(error.message());
            Vec::new()
        });
        let files = access.iter().map(|instance| &instance.file);
        let gone = files.filter(|file| self.files && !file.as_path().exists());
        missing.extend(gone.map(|file| format!("{file} is missing")));
        let node = self.complete(gpu, format_args!("{name}"), missing)?;
        let mut grant = MigGrant::from((gpu, mig));
        grant.access = access;
        grant.parent.node = node;
        match mig.graphics {
            Some(true) => self.add_displays(&mut grant.parent),
            None if self.displays => {
                let text = format!(
                    "NVML does not tell the profile of {name}: it gets no nodes for graphics"
                );
                self.chosen.missing.push(text);
            }
            _ => {}
        }
        self.chosen.migs.push(grant);
        Ok(())
    }

    /// Returns the node of a GPU.
    ///
    /// # Errors
    /// It or another part of the device is missing.
    fn complete(
        &self,
        gpu: &Gpu,
        device: fmt::Arguments<'_>,
        mut missing: Vec<String>,
    ) -> Result<Option<DeviceNode>> {
        let path = HostPath::new(format!("/dev/nvidia{}", gpu.minor));
        let mut hint = None;
        let node = nodes::at(self.dev_root, &path, self.drivers);
        let node = node.map_err(|error| {
            missing.insert(0, error.message());
            hint = Some(nodes::maker_of_gpu(gpu.minor));
        });
        if missing.is_empty() {
            return Ok(node.ok());
        }
        // A specification without devices would be removed.
        let kind = if self.is_demanded {
            ErrorKind::NotFound
        } else {
            ErrorKind::Malformed
        };
        let error = Error::new(kind, format!("{device}: {}", missing.join("; ")));
        Err(error.hint(hint.unwrap_or_else(|| nodes::MAKER_OF_CAPABILITY.into())))
    }

    /// Adds a GPU's DRM nodes, if they are wanted.
    fn add_displays(&mut self, gpu: &mut Gpu) {
        if self.displays {
            let found = drm::displays(&gpu.busid, self.dev_root, self.drivers);
            self.chosen.missing.extend(found.missing);
            (gpu.drm_nodes, gpu.drm_links) = (found.nodes, found.links);
        }
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
