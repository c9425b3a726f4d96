//! Decides what a container gets: a plan of intents, plain data.
//!
//! An [`Intent`] says *what* must be so in the container, never how. So one plan can be carried out by
//! [`apply`](crate::apply), or written into a container's configuration or a CDI specification by
//! [`render`](crate::render). Planning is pure. Paths are lexical, and what only the image can tell, such as where its
//! loader looks for libraries, is left open ([`Place`]).

#![forbid(unsafe_code)]

use std::collections::HashSet;

use serde::Serialize;

use crate::error::{Phase, Result};
use crate::host::{Grants, Host, MigGrant};
use crate::request::Request;
use crate::require;

mod compat;
mod device;
mod driver;
mod intent;
pub(crate) mod profile;

pub use device::{capabilities, gpu, imex_channel, mig_access, mig_global};
use driver::library_directories;
pub use driver::{common, cuda_compat, library_path};
pub use intent::{
    CapabilityFiles, CompatUse, CudaCompat, Device, DriverProc, EglProfile, Env, Intent,
    LibraryPath, Link, Mount, Need, Place, What,
};

/// What a container gets, shaped like the host: a part for all containers, and one for each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What every container with a device gets.
    pub common: Vec<Intent>,
    /// What each device adds.
    pub devices: Vec<Part>,
}

/// What one device adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What sort of device it is.
    pub kind: PartKind,
    /// Names it goes by: first its index, such as `0` or `1:0`, then its UUID.
    pub names: Vec<String>,
    /// What a container gets with it.
    pub intents: Vec<Intent>,
}

/// What sort of device a part of a plan is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    /// A whole GPU.
    Gpu,
    /// A GPU that is divided into MIG devices.
    MigParent,
    /// A MIG device, with the node of its GPU.
    MigDevice,
    /// The right to change or watch the MIG devices of the machine.
    MigCapability,
    /// An IMEX channel.
    ImexChannel,
}

/// Plans what a request gets on a host: the common part, and a part for each chosen device.
///
/// # Errors
/// If the host does not meet a requirement, or if something of a chosen device is not there; with their phase.
pub fn plan(request: &Request, host: &Host) -> Result<Plan> {
    require::check(
        &request.requirements,
        &host.driver.versions,
        &host.targets(),
    )
    .map_err(|error| error.during(Phase::Requirement))?;
    let grants = host.grants.as_ref();
    let grants = grants.map_err(|error| error.clone().during(Phase::Mount))?;
    let mut plan = Plan {
        common: common(&host.driver, request),
        devices: parts(host, grants, request),
    };
    plan.common.push(library_path(&host.driver, request));
    if request.policy.environment {
        plan.common
            .extend(library_directories(&host.driver, request));
        plan.common.push(Intent::void());
    }
    Ok(plan)
}

fn parts(host: &Host, grants: &Grants, request: &Request) -> Vec<Part> {
    let wsl = host.driver.wsl.as_ref();
    let gpus = host.chosen.iter().map(|chosen| Part {
        kind: match chosen.mig_devices.is_empty() {
            true => PartKind::Gpu,
            false => PartKind::MigParent,
        },
        names: names(chosen.index.to_string(), &chosen.uuid),
        intents: gpu(chosen, wsl, request),
    });
    let migs = grants.migs.iter().map(
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
    let global = grants.global.iter().map(|grant| Part {
        kind: PartKind::MigCapability,
        names: vec![grant.name.to_owned()],
        intents: mig_global(grant.nodes.as_deref(), request),
    });
    let channels = grants.imex_channels.iter().map(|channel| Part {
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

impl Plan {
    /// The plan of a container that gets some of the devices: a part goes in if one of `names` is among its names.
    #[must_use]
    pub fn select(&self, names: &[&str]) -> Vec<Intent> {
        let is_chosen = |part: &&Part| part.names.iter().any(|name| names.contains(&name.as_str()));
        flatten(&self.common, self.devices.iter().filter(is_chosen))
    }

    /// The plan of a container that gets all of the devices.
    #[must_use]
    pub fn flattened(&self) -> Vec<Intent> {
        flatten(&self.common, self.devices.iter())
    }
}

/// One list: the common part, then the devices', each intent once. What several say of the application profile becomes
/// one intent.
fn flatten<'a>(common: &[Intent], parts: impl Iterator<Item = &'a Part>) -> Vec<Intent> {
    let devices = parts.flat_map(|part| &part.intents);
    let mut all: Vec<Intent> = Vec::with_capacity(common.len());
    let mut seen = HashSet::new();
    let mut profile = None;
    for intent in common.iter().chain(devices) {
        match (&intent.what, profile) {
            (What::EglProfile(more), Some(at)) => {
                if let Some(What::EglProfile(first)) =
                    all.get_mut(at).map(|found: &mut Intent| &mut found.what)
                {
                    first.add(&more.minors);
                }
                continue;
            }
            (What::EglProfile(_), None) => profile = Some(all.len()),
            _ if !seen.insert(intent) => continue,
            _ => {}
        }
        all.push(intent.clone());
    }
    all
}

#[cfg(test)]
mod tests;
