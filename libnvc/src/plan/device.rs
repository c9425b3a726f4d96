//! Plans the intents of one GPU, one MIG device or one IMEX channel.

use super::{
    CapabilityFiles, Device, DriverProc, EglDevices, EglProfile, Intent, Need, Place, ProcDevices,
    What,
};
use crate::capability::Capability;
use crate::host::{DeviceNode, FileClass, Gpu, HostLink, MigAccess, WslDriver, nodes};
use crate::path::{ContainerPath, HostPath};
use crate::request::Request;

/// Plans a GPU: its node, its entry in /proc/driver/nvidia/gpus, its bit in the application profile.
///
/// Under WSL2 there is no node; the files of the driver store replace it, the same ones for every GPU.
pub(super) fn gpu(gpu: &Gpu, wsl: Option<&WslDriver>, request: &Request) -> Vec<Intent> {
    if let Some(wsl) = wsl {
        let file = |component: &String| {
            let path = wsl.store.join(component);
            let place = Place::same(&path);
            Intent::mount(path, place, FileClass::Library)
        };
        return wsl.components.iter().map(file).collect();
    }
    let mut intents = Vec::new();
    if let Some(node) = &gpu.node {
        intents.extend(device(node, Need::Required, request));
    }
    intents.extend(displays(&gpu.drm_nodes, &gpu.drm_links, request));
    if let Some(directory) = &gpu.proc_dir {
        let name = directory.file_name().to_string_lossy().into_owned();
        intents.extend(shown(vec![name], CapabilityFiles::None, request));
    }
    let is_visible = gpu.node.is_some() && request.capabilities.include(Capability::Graphics);
    if is_visible && !request.policy.before_start {
        intents.push(egl_profile(EglDevices::Planned(vec![gpu.minor])));
    }
    intents
}

/// Plans a GPU's nodes for displays and rendering, and the links to them, for a container with graphics.
pub(super) fn displays(nodes: &[DeviceNode], links: &[HostLink], request: &Request) -> Vec<Intent> {
    if !request.capabilities.include(Capability::Graphics) {
        return Vec::new();
    }
    let nodes = nodes.iter();
    let nodes = nodes.filter_map(|node| device(node, Need::BestEffort, request));
    let links = links.iter().map(|link| {
        Intent::best_effort(What::Link(super::Link {
            at: Place::same(&link.at),
            target: link.target.clone(),
            replaces: false,
        }))
    });
    nodes.chain(links).collect()
}

/// Plans access to one MIG device: the access files of its GPU instance and compute instance, and their nodes.
pub(super) fn mig_access(access: &[MigAccess], request: &Request) -> Vec<Intent> {
    let mut intents = Vec::new();
    for instance in access {
        let files = CapabilityFiles::Some(vec![instance.file.clone()]);
        intents.extend(shown(Vec::new(), files, request));
        if let Some(node) = &instance.node {
            intents.extend(device(node, Need::Required, request));
        }
    }
    intents
}

/// Plans the right to configure or monitor MIG: all capabilities, and the nodes `nodes` of the granted ones.
///
/// `nodes` is None if the driver has no nvidia-caps devices.
pub(super) fn mig_global(nodes: Option<&[DeviceNode]>, request: &Request) -> Vec<Intent> {
    let mut intents = Vec::new();
    intents.extend(shown(Vec::new(), CapabilityFiles::All, request));
    if let Some(nodes) = nodes {
        let directory = HostPath::new(nodes::CAPABILITY_DIRECTORY);
        let place = Place::same(&directory);
        intents.push(Intent::mount(directory, place, FileClass::DeviceDir));
        intents.extend(capabilities(nodes, request));
    }
    intents
}

/// Plans the right to open capability devices whose nodes are already in the container, such as all those of a GPU.
pub(super) fn capabilities(nodes: &[DeviceNode], request: &Request) -> Vec<Intent> {
    let allowed = nodes.iter().map(|node| Device {
        bind: false,
        ..of_node(node, request)
    });
    let allowed = allowed.filter(|device| device.allow);
    allowed
        .map(|device| Intent::required(What::Device(device)))
        .collect()
}

/// Plans an IMEX channel.
pub(super) fn imex_channel(node: &DeviceNode, request: &Request) -> Vec<Intent> {
    device(node, Need::Required, request).into_iter().collect()
}

/// Plans a device's node and the right to open it, as far as policy allows.
pub(super) fn device(node: &DeviceNode, need: Need, request: &Request) -> Option<Intent> {
    let device = of_node(node, request);
    (device.bind || device.allow).then_some(Intent {
        need,
        what: What::Device(device),
    })
}

fn of_node(node: &DeviceNode, request: &Request) -> Device {
    Device {
        source: node.path.clone(),
        number: node.number,
        owner: node.owner,
        at: ContainerPath::from(&node.path),
        bind: request.policy.device_nodes,
        allow: request.policy.device_rules,
    }
}

/// Plans a device's entries in /proc/driver/nvidia. A container that does not exist yet will show its own devices.
fn shown(gpus: Vec<String>, capabilities: CapabilityFiles, request: &Request) -> Option<Intent> {
    let devices = ProcDevices::Planned { gpus, capabilities };
    (!request.policy.before_start).then(|| driver_proc(devices))
}

pub(super) fn driver_proc(devices: ProcDevices) -> Intent {
    Intent::required(What::DriverProc(DriverProc {
        no_new_nodes: true,
        devices,
    }))
}

pub(super) fn egl_profile(devices: EglDevices) -> Intent {
    Intent::best_effort(What::EglProfile(EglProfile { devices }))
}
