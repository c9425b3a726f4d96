//! Collects the facts about the host that planning needs, and no more than the caller requests.
//!
//! This is where the request meets the driver: [`host`](crate::host) knows no requests, and [`select`](crate::select)
//! works on facts that were already read.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::PathBuf;

use crate::error::{Error, Phase, Result};
use crate::host::{
    DeviceInfo, DeviceNode, DriverInfo, DriverSession, Gpu, MigAccess, MigDevice, nvcaps,
};
use crate::path::HostPath;
use crate::request::Request;
use crate::select::Choice;

/// A host with a driver.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Host {
    /// The driver root.
    pub root: PathBuf,
    /// The driver.
    pub driver: DriverInfo,
    /// All GPUs.
    pub devices: DeviceInfo,
    /// The chosen devices.
    pub chosen: Chosen,
}

/// The devices that a request chooses.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// Whole GPUs. The GPU of a MIG device is in its grant, and here only if it is chosen itself.
    pub gpus: Vec<Gpu>,
    /// MIG devices.
    pub migs: Vec<MigGrant>,
    /// Rights over all MIG devices of the machine.
    pub global: Vec<GlobalGrant>,
    /// IMEX channels.
    pub imex_channels: Vec<DeviceNode>,
    /// Why nodes of these devices are missing, if a caller looked for them.
    pub missing: Vec<String>,
    /// Why one of them cannot be granted. The error is kept until a plan needs the devices.
    pub refused: Option<Error>,
}

/// A chosen MIG device.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// Puts together what was found below a driver root.
    pub fn new(root: PathBuf, driver: DriverInfo, devices: DeviceInfo, chosen: Chosen) -> Self {
        Self {
            root,
            driver,
            devices,
            chosen,
        }
    }

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
        let detection = |error: Error| error.during(Phase::Detection);
        let driver = session
            .info(request.policy.driver_options)
            .map_err(detection)?;
        session.check_libraries(&driver).map_err(detection)?;
        for warning in driver.missing_libraries(request.capabilities) {
            log::warn!("{warning}");
        }
        let devices = session.devices().map_err(detection)?;
        let choice = Choice::make(&devices, &request.devices)?;
        let channels = &request.devices.imex_channels;
        let chosen = Chosen::of(session, &choice, channels, new_channels);
        let root = session.root().path().to_owned();
        Ok(Self::new(root, driver, devices, chosen))
    }
}

impl Chosen {
    /// Collects the devices of a choice, as far as they can be granted.
    fn of(
        session: &DriverSession,
        choice: &Choice<'_>,
        channels: &[u32],
        new_channels: &[DeviceNode],
    ) -> Self {
        let mut chosen = Self {
            gpus: choice.selection.whole.iter().copied().cloned().collect(),
            ..Self::default()
        };
        if choice.wants_single_migs() {
            let migs = choice.selection.migs.iter().copied();
            chosen.migs = migs.map(MigGrant::from).collect();
        }
        chosen.refused = chosen.grant(session, choice, channels, new_channels).err();
        chosen
    }

    /// Finds what the devices other than whole GPUs need.
    ///
    /// # Errors
    /// For a missing capability or IMEX channel.
    fn grant(
        &mut self,
        session: &DriverSession,
        choice: &Choice<'_>,
        channels: &[u32],
        new_channels: &[DeviceNode],
    ) -> Result<()> {
        for mig in &mut self.migs {
            mig.access = session.mig_access(&mig.device)?;
        }
        for (name, selection) in [
            ("config", &choice.mig_config),
            ("monitor", &choice.mig_monitor),
        ] {
            if !selection.gpus.is_empty() {
                self.global.push(GlobalGrant {
                    name,
                    nodes: global_nodes(session, name, &selection.gpus)?,
                });
            }
        }
        let new = new_channels.iter();
        let new: HashMap<u32, _> = new.map(|node| (node.number.minor, node)).collect();
        for channel in channels {
            self.imex_channels.push(match new.get(channel) {
                Some(node) => DeviceNode::clone(node),
                None => session.imex_channel(*channel)?,
            });
        }
        Ok(())
    }

    /// Returns the GPUs that requirements are about: the chosen ones, and those of chosen MIG devices.
    pub fn with_parents(&self) -> Vec<&Gpu> {
        let mut gpus: Vec<&Gpu> = self.gpus.iter().collect();
        for MigGrant { parent, .. } in &self.migs {
            if !gpus.iter().any(|known| known.uuid == parent.uuid) {
                gpus.push(parent);
            }
        }
        gpus
    }
}

impl From<(&Gpu, &MigDevice)> for MigGrant {
    /// Grants a MIG device of a GPU, so far without access, and without the DRM nodes, which belong to the whole GPU.
    fn from((parent, device): (&Gpu, &MigDevice)) -> Self {
        Self {
            parent: Gpu {
                drm_nodes: Vec::new(),
                drm_links: Vec::new(),
                ..parent.clone()
            },
            device: device.clone(),
            access: Vec::new(),
        }
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
