//! Collects the facts about the host that planning needs, and no more than the caller requests.
//!
//! This is where the request meets the driver: [`host`](crate::host) knows no requests, and [`select`](crate::select)
//! works on facts that were already read.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::PathBuf;

use crate::error::{Phase, Result};
use crate::host::{
    DeviceInfo, DeviceNode, DriverInfo, DriverSession, Gpu, MigAccess, MigDevice, nvcaps,
};
use crate::path::HostPath;
use crate::request::{DeviceRequest, Request};
use crate::require::Target;
use crate::select::Choice;

/// A host with a driver.
#[derive(Clone, Debug)]
pub struct Host {
    /// The driver root.
    pub root: PathBuf,
    /// The driver.
    pub driver: DriverInfo,
    /// All GPUs.
    pub devices: DeviceInfo,
    /// The chosen GPUs, including the parents of chosen MIG devices.
    pub chosen: Vec<Gpu>,
    /// Why nodes of the chosen devices are missing, if a caller looked for them.
    pub missing: Vec<String>,
    /// The grants of the chosen devices. An error is kept until a plan needs them.
    pub grants: Result<Grants>,
}

/// Grants other than whole GPUs.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    /// The chosen MIG devices.
    pub migs: Vec<MigGrant>,
    /// The chosen rights over all MIG devices of the machine.
    pub global: Vec<GlobalGrant>,
    /// The chosen IMEX channels.
    pub imex_channels: Vec<DeviceNode>,
}

/// A chosen MIG device.
#[derive(Clone, Debug)]
pub struct MigGrant {
    /// The GPU that it is part of.
    pub parent: Gpu,
    /// The device.
    pub device: MigDevice,
    /// The capabilities that give access to it.
    pub access: Vec<MigAccess>,
}

/// A right over all MIG devices.
#[derive(Clone, Debug)]
pub struct GlobalGrant {
    /// Its name: `config` or `monitor`.
    pub name: &'static str,
    /// The devices of the capabilities that it grants; None if capabilities are not devices.
    pub nodes: Option<Vec<DeviceNode>>,
}

impl Host {
    /// Waits for NVML's answers and collects the facts that a request needs. `new_channels` are nodes of requested IMEX
    /// channels that will be created before they are used; those of other channels must exist.
    ///
    /// # Errors
    /// With their phase: those of [`DriverSession::info`], [`DriverSession::devices`] and [`Choice::make`].
    pub(crate) fn of(
        session: &mut DriverSession,
        request: &Request,
        new_channels: &[DeviceNode],
    ) -> Result<Self> {
        let detection = |error: crate::Error| error.during(Phase::Detection);
        let driver = session
            .info(request.policy.driver_options)
            .map_err(detection)?;
        let devices = session.devices().map_err(detection)?;
        let choice = Choice::make(&devices, &request.devices)?;
        let chosen = choice.selection.gpus.iter().copied().cloned().collect();
        let grants = Grants::of(session, &choice, &request.devices, new_channels);
        Ok(Self {
            root: session.root().path().to_owned(),
            driver,
            chosen,
            missing: Vec::new(),
            grants,
            devices,
        })
    }

    /// Returns the GPUs to check requirements against: the chosen ones, and those of chosen MIG devices.
    pub fn targets(&self) -> Vec<Target<'_>> {
        let is_new = |gpu: &&Gpu| !self.chosen.iter().any(|chosen| chosen.uuid == gpu.uuid);
        let grants = self.grants.iter().flat_map(|grants| &grants.migs);
        let parents = grants.map(|grant| &grant.parent).filter(is_new);
        let chosen = self.chosen.iter().chain(parents);
        chosen
            .map(|gpu| Target {
                arch: &gpu.arch,
                brand: &gpu.brand,
            })
            .collect()
    }
}

impl Grants {
    /// Collects the grants of the chosen devices.
    ///
    /// # Errors
    /// For a missing capability or IMEX channel.
    fn of(
        session: &DriverSession,
        choice: &Choice<'_>,
        devices: &DeviceRequest,
        new_channels: &[DeviceNode],
    ) -> Result<Self> {
        let mut grants = Self::default();
        if choice.wants_single_migs() {
            for (gpu, mig) in &choice.selection.migs {
                grants.migs.push(MigGrant {
                    // DRM nodes belong to the whole GPU.
                    parent: Gpu {
                        drm_nodes: Vec::new(),
                        drm_links: Vec::new(),
                        ..Gpu::clone(gpu)
                    },
                    device: MigDevice::clone(mig),
                    access: session.mig_access(mig)?,
                });
            }
        }
        for (name, selection) in [
            ("config", &choice.mig_config),
            ("monitor", &choice.mig_monitor),
        ] {
            if !selection.gpus.is_empty() {
                grants.global.push(GlobalGrant {
                    name,
                    nodes: global_nodes(session, name, &selection.gpus)?,
                });
            }
        }
        let new = new_channels.iter();
        let new: HashMap<u32, _> = new.map(|node| (node.number.minor, node)).collect();
        for channel in &devices.imex_channels {
            grants.imex_channels.push(match new.get(channel) {
                Some(node) => DeviceNode::clone(node),
                None => session.imex_channel(*channel)?,
            });
        }
        Ok(grants)
    }
}

/// Returns the nodes that a global MIG capability grants: its own and those of all GPUs.
fn global_nodes(
    session: &DriverSession,
    capability: &str,
    gpus: &[&Gpu],
) -> Result<Option<Vec<DeviceNode>>> {
    let file = HostPath::new(nvcaps::CAPABILITIES)
        .join("mig")
        .join(capability);
    let Some(node) = session.capability_node(&file)? else {
        return Ok(None);
    };
    let mut nodes = vec![node];
    let minors: Vec<u32> = gpus.iter().map(|gpu| gpu.minor).collect();
    let of_gpus = session.capabilities().of_gpus(&minors)?;
    nodes.extend(of_gpus.into_iter().flatten().flatten());
    Ok(Some(nodes))
}
