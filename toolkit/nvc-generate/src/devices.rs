//! Selects GPUs and MIG devices, and names their edits.

use std::path::Path;

use libnvc::host::nvcaps::MigMinors;
use libnvc::host::{CharDrivers, DeviceInfo, DriverRoot, Gpu, MigDevice, drm, nodes};
use libnvc::plan::PartKind;
use libnvc::render::cdi::NamedDevice;
use libnvc::survey::{Grants, MigGrant};
use libnvc::{Error, ErrorKind, HostPath, Result};
use nvc_cdi::{Device, Edits};

use super::driver::written;
use super::ids::{Id, IdList, parse};
use super::{Naming, Options};

/// The selected GPUs and MIG devices.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) gpus: Vec<Gpu>,
    pub(super) grants: Grants,
    /// Why nodes are missing.
    pub(super) missing: Vec<String>,
}

/// Selects the devices; None if no GPU is requested.
pub(super) fn choose(
    options: &Options,
    info: &DeviceInfo,
    dev_root: &DriverRoot,
    drivers: &CharDrivers,
) -> Result<Option<Chosen>> {
    let mut finder = Finder {
        dev_root,
        drivers,
        minors: None,
        chosen: Chosen::default(),
    };
    match parse(&options.ids)? {
        IdList::None => return Ok(None),
        IdList::All => {
            for gpu in &info.gpus {
                if !info.divided.contains(&gpu.index) {
                    finder.gpu(gpu);
                }
                for mig in &gpu.mig_devices {
                    finder.mig(gpu, mig)?;
                }
            }
        }
        IdList::These(ids) => {
            for id in ids {
                match find(info, &id)? {
                    (gpu, None) => finder.gpu(gpu),
                    (gpu, Some(mig)) => finder.mig(gpu, mig)?,
                }
            }
        }
    }
    Ok(Some(finder.chosen))
}

/// Returns a device once for each naming.
pub(super) fn named(options: &Options, found: NamedDevice) -> Vec<Device> {
    let is_mig = found.kind == PartKind::MigDevice;
    let mut edits = written(found.edits, options);
    if !is_mig {
        permissions(options, &mut edits);
    }
    let [index, uuid] = [0, 1].map(|at| found.names.get(at).cloned().unwrap_or_default());
    let device = |naming: &Naming| Device {
        name: match naming {
            Naming::Index => index.clone(),
            Naming::TypeIndex if is_mig => format!("mig{index}"),
            Naming::TypeIndex => format!("gpu{index}"),
            Naming::Uuid => uuid.clone(),
        },
        container_edits: edits.clone(),
        ..Device::default()
    };
    options.naming.iter().map(device).collect()
}

/// Splits the whole GPUs among devices by memory coherence: the coherent ones first.
pub(super) fn by_coherence(
    options: &Options,
    info: &DeviceInfo,
    devices: &[Device],
) -> [Vec<Device>; 2] {
    [true, false].map(|wanted| {
        let gpus = info.gpus.iter().filter(|gpu| {
            let known = info.coherent.iter().find(|(index, _)| *index == gpu.index);
            known.is_some_and(|(_, coherent)| *coherent == wanted)
        });
        let names: Vec<String> = gpus
            .flat_map(|gpu| options.naming.iter().map(|naming| gpu_name(gpu, *naming)))
            .collect();
        let is_one = |device: &&Device| names.contains(&device.name);
        devices.iter().filter(is_one).cloned().collect()
    })
}

fn gpu_name(gpu: &Gpu, naming: Naming) -> String {
    match naming {
        Naming::Index => gpu.index.to_string(),
        Naming::TypeIndex => format!("gpu{}", gpu.index),
        Naming::Uuid => gpu.uuid.clone(),
    }
}

/// Returns the device `none`, which requests no GPU.
pub(super) fn empty_device() -> Device {
    Device {
        name: "none".into(),
        container_edits: Edits {
            env: vec!["NVCT_EMPTY_DEVICE=".into()],
            ..Edits::default()
        },
        ..Device::default()
    }
}

fn find<'a>(info: &'a DeviceInfo, id: &Id) -> Result<(&'a Gpu, Option<&'a MigDevice>)> {
    let mig = |gpu: &'a Gpu, fits: &dyn Fn(&MigDevice) -> bool| {
        let mut migs = gpu.mig_devices.iter();
        migs.find(|mig| fits(mig)).map(|mig| (gpu, Some(mig)))
    };
    let found = info.gpus.iter().find_map(|gpu| match id {
        Id::Gpu(index) => (gpu.index == *index).then_some((gpu, None)),
        Id::Mig(index, slot) if gpu.index == *index => mig(gpu, &|mig| mig.index == *slot),
        Id::Mig(..) => None,
        Id::Uuid(uuid) if gpu.uuid == *uuid => Some((gpu, None)),
        Id::Uuid(uuid) => mig(gpu, &|mig| mig.uuid == *uuid),
    });
    found.ok_or_else(|| {
        let name = match id {
            Id::Gpu(index) => index.to_string(),
            Id::Mig(gpu, mig) => format!("{gpu}:{mig}"),
            Id::Uuid(uuid) => uuid.clone(),
        };
        let there = info.gpus.iter().flat_map(|gpu| {
            let migs = gpu
                .mig_devices
                .iter()
                .map(move |mig| format!("{}:{}", gpu.index, mig.index));
            std::iter::once(gpu.index.to_string()).chain(migs)
        });
        let there: Vec<String> = there.collect();
        let error = Error::new(
            ErrorKind::InvalidArgument,
            format!("there is no device {name}"),
        );
        error.hint(format!("there are {}", there.join(", ")))
    })
}

struct Finder<'a> {
    dev_root: &'a DriverRoot,
    drivers: &'a CharDrivers,
    minors: Option<MigMinors>,
    chosen: Chosen,
}

impl Finder<'_> {
    fn gpu(&mut self, gpu: &Gpu) {
        let node = self.node(gpu);
        let displays = drm::displays(&gpu.busid, self.dev_root, self.drivers);
        self.chosen.missing.extend(displays.missing);
        self.chosen.gpus.push(Gpu {
            node,
            drm_nodes: displays.nodes,
            drm_links: displays.links,
            ..gpu.clone()
        });
    }

    /// DRM nodes belong to the whole GPU.
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
        self.chosen.grants.migs.push(MigGrant {
            parent: Gpu {
                node,
                ..gpu.clone()
            },
            device: mig.clone(),
            access,
        });
        Ok(())
    }

    fn node(&mut self, gpu: &Gpu) -> Option<libnvc::host::DeviceNode> {
        let path = HostPath::new(format!("/dev/nvidia{}", gpu.minor));
        let node = nodes::at(self.dev_root, &path, self.drivers);
        let missing = &mut self.chosen.missing;
        node.map_err(|why| missing.push(why)).ok()
    }
}

/// Adds the hook for old versions of crun, which created directories that only root could enter.
fn permissions(options: &Options, edits: &mut Edits) {
    let mut directories = Vec::new();
    for node in &edits.device_nodes {
        let directory = Path::new(&node.path)
            .parent()
            .map(|parent| parent.display().to_string());
        if let Some(directory) = directory.filter(|directory| directory != "/dev")
            && !directories.contains(&directory)
        {
            directories.push(directory);
        }
    }
    if directories.is_empty() {
        return;
    }
    let mode = ["--mode".to_string(), "755".to_string()];
    let paths = super::hooks::repeated("--path", &directories);
    let arguments = mode.into_iter().chain(paths).collect();
    options.hooks.add("chmod", arguments, edits);
}
