//! Selects GPUs and MIG devices, and names their edits.

use std::path::Path;

use libnvc::host::nvcaps::MigMinors;
use libnvc::host::{CharDrivers, DeviceInfo, DriverRoot, Gpu, MigDevice, drm, nodes};
use libnvc::plan::PartKind;
use libnvc::select::select_devices;
use libnvc::survey::{Chosen, MigGrant};
use libnvc::{ErrorKind, HostPath, Result};
use nvc_cdi::Edits;
use nvc_program::hook_names;

use crate::draft::{Draft, DraftDevice, repeated};
use crate::render::RenderedPart;
use crate::{Naming, Options, ids};

/// Selects the devices that `ids` names, and finds their nodes.
pub(super) fn choose(
    options: &Options,
    ids: &[String],
    info: &DeviceInfo,
    dev_root: &DriverRoot,
    drivers: &CharDrivers,
) -> Result<Chosen> {
    ids::check(ids)?;
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

/// Returns a device once for each naming.
pub(super) fn named(options: &Options, found: RenderedPart) -> Vec<DraftDevice> {
    let is_mig = found.kind == PartKind::MigDevice;
    let mut draft = found.draft;
    if !is_mig {
        permissions(options, &mut draft);
    }
    let [index, uuid] = [0, 1].map(|at| found.names.get(at).cloned().unwrap_or_default());
    let device = |naming: &Naming| DraftDevice {
        name: match naming {
            Naming::Index => index.clone(),
            Naming::TypeIndex if is_mig => format!("mig{index}"),
            Naming::TypeIndex => format!("gpu{index}"),
            Naming::Uuid => uuid.clone(),
        },
        draft: draft.clone(),
    };
    options.naming.iter().map(device).collect()
}

/// Splits the whole GPUs among devices by memory coherence: the coherent ones first.
pub(super) fn by_coherence(
    options: &Options,
    info: &DeviceInfo,
    devices: &[DraftDevice],
) -> [Vec<DraftDevice>; 2] {
    [true, false].map(|wanted| {
        let gpus = info.gpus.iter().filter(|gpu| {
            let known = info.coherent.iter().find(|(index, _)| *index == gpu.index);
            known.is_some_and(|(_, coherent)| *coherent == wanted)
        });
        let names: Vec<String> = gpus
            .flat_map(|gpu| options.naming.iter().map(|naming| gpu_name(gpu, *naming)))
            .collect();
        let is_one = |device: &&DraftDevice| names.contains(&device.name);
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
pub(super) fn empty_device() -> DraftDevice {
    let edits = Edits {
        env: vec!["NVCT_EMPTY_DEVICE=".into()],
        ..Edits::default()
    };
    DraftDevice::new("none", edits)
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

/// Adds the hook for old versions of crun, which created directories that only root could enter.
pub(crate) fn permissions(options: &Options, draft: &mut Draft) {
    let mut directories = Vec::new();
    for node in &draft.edits.device_nodes {
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
    let paths = repeated("--path", directories);
    let arguments = mode.into_iter().chain(paths).collect();
    options.hooks.add(hook_names::CHMOD, arguments, draft);
}
