//! Plans a container's contents as a list of intents, plain data.
//!
//! An [`Intent`] states the required result in the container, not how to reach it. So [`apply`](crate::apply) can
//! execute the same plan that [`render`](crate::render) writes into a container's configuration or a CDI specification.
//! Planning is pure. Paths are lexical, and anything only the image knows, such as its library directories, stays open
//! ([`Place`]).

#![forbid(unsafe_code)]

use std::collections::HashSet;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Phase, Result};
use crate::host::{
    DeviceNode, DeviceRole, DriverInfo, DriverRoot, Gpu, HostLink, MigAccess, WslDriver, nodes,
};
use crate::options::DriverOptions;
use crate::path::HostPath;
use crate::request::{Capability, Request};
use crate::require;
use crate::survey::{Host, MigGrant};

mod chosen;
pub(crate) mod compat;
mod device;
mod driver;
pub mod handover;
mod intent;
pub(crate) mod profile;

use device::{capabilities, displays, gpu, imex_channel, mig_access, mig_global};
use driver::{common, cuda_compat, graphics_alone, library_directories, library_path};
pub use intent::{
    Alias, CapabilityFiles, CompatUse, CudaCompat, Device, DriverProc, EglDevices, EglProfile, Env,
    FileMode, Intent, LibraryPath, Link, Mount, Need, Place, ProcDevices, Sockets, What,
};

/// A plan, shaped like the host: a part for all containers, and one for each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Intents for every container with a device.
    pub common: Vec<Intent>,
    /// Additional intents of each device.
    pub devices: Vec<Part>,
}

/// The part of a plan for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Kind of device.
    pub kind: PartKind,
    /// Names of the device: first its index, such as `0` or `1:0`, then its UUID.
    pub names: Vec<String>,
    /// Its intents.
    pub intents: Vec<Intent>,
}

/// Kind of device of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    /// A whole GPU.
    Gpu,
    /// A GPU in MIG mode.
    MigParent,
    /// A MIG device, with the node of its GPU.
    MigDevice,
    /// The right to configure or monitor the machine's MIG devices.
    MigCapability,
    /// An IMEX channel.
    ImexChannel,
}

/// Plans a request on a host: the common part, and a part for each chosen device.
///
/// # Errors
/// If the host does not meet a requirement, or if a chosen device lacks a node or capability; with their phase.
pub fn plan(request: &Request, host: &Host) -> Result<Plan> {
    let (versions, gpus) = (&host.driver.versions, host.chosen.with_parents());
    require::check(&request.requirements, versions, &gpus)
        .map_err(|error| error.during(Phase::Requirement))?;
    if let Some(error) = &host.chosen.refused {
        return Err(error.clone().during(Phase::Mount));
    }
    let devices = parts(host, request);
    if request.policy.demand_nodes {
        demand_nodes(host).map_err(|error| error.during(Phase::Device))?;
    }
    Ok(Plan {
        common: of_driver(&host.driver, request),
        devices,
    })
}

/// Returns a warning if a container that wants CUDA would lack a node without which it fails in every program.
pub(crate) fn warning(request: &Request, host: &Host) -> Option<String> {
    let has = |role| host.driver.devices.iter().any(|device| device.role == role);
    let wants = request.capabilities.include(Capability::Compute)
        && !request
            .policy
            .driver_options
            .contains(DriverOptions::NO_UVM);
    let lacks = has(DeviceRole::Control) && !has(DeviceRole::Uvm) && !host.chosen.gpus.is_empty();
    (wants && lacks).then(|| {
        let (path, maker) = (DeviceRole::Uvm.path(), nodes::MAKER_OF_CONTROL);
        format!("{path} is missing: CUDA will fail in the container with error 999: {maker}")
    })
}

/// Refuses a container that would get the driver's libraries but not its node.
fn demand_nodes(host: &Host) -> Result<()> {
    let mut shared = host.driver.devices.iter().map(|device| device.role);
    if shared.any(|role| matches!(role, DeviceRole::Control | DeviceRole::Dxg)) {
        return Ok(());
    }
    let control = DeviceRole::Control.path();
    let text = format!("the driver's node {control} is missing");
    Err(Error::new(ErrorKind::NotFound, text).hint(nodes::MAKER_OF_CONTROL))
}

/// A part of the host that a caller gives to a container by itself.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// What every container with a GPU gets: the driver, the loader's search path, and the environment if the policy has
    /// it.
    Whole(&'a DriverInfo),
    /// The driver alone: procfs, libraries, programs, firmware, sockets and the shared devices.
    Driver(&'a DriverInfo),
    /// The driver's files and links for graphics.
    Graphics(&'a DriverInfo),
    /// The image's CUDA compatibility libraries, if they may be newer than the driver's.
    CudaCompat(&'a DriverInfo),
    /// The loader's search path for the driver's libraries.
    LibraryPath(&'a DriverInfo),
    /// A GPU, or under WSL2 the driver store that replaces its node.
    Gpu(&'a Gpu, Option<&'a WslDriver>),
    /// A GPU's nodes for displays and rendering, and the links to them, for a container with graphics.
    Displays(&'a [DeviceNode], &'a [HostLink]),
    /// The right to use one MIG device.
    MigAccess(&'a [MigAccess]),
    /// The right to configure or monitor MIG, with the nodes of the granted capabilities; None if capabilities are not
    /// devices.
    MigGlobal(Option<&'a [DeviceNode]>),
    /// The right to open capability devices whose nodes are already in the container.
    Capabilities(&'a [DeviceNode]),
    /// An IMEX channel.
    ImexChannel(&'a DeviceNode),
}

impl Item<'_> {
    /// Plans the item for a container that requests it.
    pub fn plan(self, request: &Request) -> Vec<Intent> {
        match self {
            Self::Whole(driver) => of_driver(driver, request),
            Self::Driver(driver) => common(driver, request),
            Self::Graphics(driver) => graphics_alone(driver, request),
            Self::CudaCompat(driver) => cuda_compat(driver, request).into_iter().collect(),
            Self::LibraryPath(driver) => vec![library_path(driver, request)],
            Self::Gpu(device, wsl) => gpu(device, wsl, request),
            Self::Displays(nodes, links) => displays(nodes, links, request),
            Self::MigAccess(access) => mig_access(access, request),
            Self::MigGlobal(nodes) => mig_global(nodes, request),
            Self::Capabilities(nodes) => capabilities(nodes, request),
            Self::ImexChannel(node) => imex_channel(node, request),
        }
    }
}

/// Plans what every container with a GPU gets.
fn of_driver(driver: &DriverInfo, request: &Request) -> Vec<Intent> {
    let mut intents = common(driver, request);
    intents.push(library_path(driver, request));
    if request.policy.before_start {
        intents.extend(library_directories(driver, request));
        intents.push(Intent::void());
    }
    intents
}

fn parts(host: &Host, request: &Request) -> Vec<Part> {
    let (wsl, chosen) = (host.driver.wsl.as_ref(), &host.chosen);
    let gpus = chosen.gpus.iter().map(|whole| Part {
        kind: if whole.mig_devices.is_empty() {
            PartKind::Gpu
        } else {
            PartKind::MigParent
        },
        names: names(whole.index.to_string(), &whole.uuid),
        intents: gpu(whole, wsl, request),
    });
    let migs = chosen.migs.iter().map(
        |MigGrant {
             parent,
             device,
             access,
         }| Part {
            kind: PartKind::MigDevice,
            names: names(format!("{}:{}", parent.index, device.index), &device.uuid),
            intents: [gpu(parent, wsl, request), mig_access(access, request)].concat(),
        },
    );
    let global = chosen.global.iter().map(|grant| Part {
        kind: PartKind::MigCapability,
        names: vec![grant.name.to_owned()],
        intents: mig_global(grant.nodes.as_deref(), request),
    });
    let channels = chosen.imex_channels.iter().map(|channel| Part {
        kind: PartKind::ImexChannel,
        names: names(channel.path.file_name().to_string_lossy().into_owned(), ""),
        intents: imex_channel(channel, request),
    });
    gpus.chain(migs).chain(global).chain(channels).collect()
}

fn names(first: String, uuid: &str) -> Vec<String> {
    let uuid = Some(uuid.to_owned()).filter(|uuid| !uuid.is_empty());
    [Some(first), uuid].into_iter().flatten().collect()
}

/// Adds the name of the device to an error about its node on the host, or about a file of its capabilities.
pub fn naming_device(error: Error, parts: &[Part], root: &DriverRoot) -> Error {
    let is_it = |path: &HostPath| error.is_about(&root.join(path));
    let is_its = |part: &&Part| part.intents.iter().any(|intent| intent.needs(is_it));
    // The MIG device comes after its GPU, and has the same node.
    let Some(part) = parts.iter().rev().find(is_its) else {
        return error;
    };
    let what = match part.kind {
        PartKind::Gpu | PartKind::MigParent => "GPU",
        PartKind::MigDevice => "MIG device",
        PartKind::MigCapability => "MIG capability",
        PartKind::ImexChannel => "IMEX",
    };
    let name = part.names.first().map_or("", String::as_str);
    error.context(format_args!("{what} {name}"))
}

impl Plan {
    /// Returns the intents for a container with all devices.
    #[must_use]
    pub(crate) fn flattened(&self) -> Vec<Intent> {
        flatten(&self.common, &self.devices)
    }
}

/// Returns one list: the common part, then the devices' intents, without duplicates. Intents for the application
/// profile are merged into one.
fn flatten(common: &[Intent], parts: &[Part]) -> Vec<Intent> {
    let devices = parts.iter().flat_map(|part| &part.intents);
    let mut all: Vec<Intent> = Vec::with_capacity(common.len());
    let mut seen = HashSet::new();
    for intent in common.iter().chain(devices) {
        if let What::EglProfile(more) = &intent.what {
            let mut profiles = all.iter_mut().filter_map(|intent| match &mut intent.what {
                What::EglProfile(profile) => Some(profile),
                _ => None,
            });
            if profiles.any(|profile| profile.add(more)) {
                continue;
            }
        }
        if seen.insert(intent) {
            all.push(intent.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests;
