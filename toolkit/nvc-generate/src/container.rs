//! Returns the plan for one container.

use std::collections::HashSet;

use libnvc::Result;
use libnvc::plan::Intent;
use libnvc::request::Request;
use libnvc::survey::Host;

use crate::content::{Content, DeviceName, check, sort};
use crate::{Automatic, Find, Mode, modes};

/// What one container gets.
#[derive(Debug)]
pub struct ContainerPlan {
    /// The intents of its devices, then those for all containers. Sources are paths of the host.
    pub intents: Vec<Intent>,
    /// Warnings in order of occurrence.
    pub warnings: Vec<String>,
    /// The driver and the chosen devices, if NVML was queried.
    pub host: Option<Host>,
}

/// Finds the devices of a container's request, and returns the plan for it.
///
/// # Errors
/// As [`generate`](crate::generate), and those of [`libnvc::plan::plan`], with their phase.
pub fn for_container(find: &Find, request: &Request) -> Result<ContainerPlan> {
    plan(modes::find(find, request)?)
}

/// Works like [`for_container`], but leaves the GPUs of a Jetson to the caller.
///
/// # Errors
/// As [`for_container`].
pub fn for_container_unless_jetson(
    find: &Find,
    request: Request,
) -> Result<Automatic<ContainerPlan>> {
    modes::find_unless_jetson(find, request)?.and_then(plan)
}

fn plan(content: Content) -> Result<ContainerPlan> {
    let Content {
        mut devices,
        mut common,
        warnings,
        host,
        ..
    } = content;
    let summary = devices.iter().map(|device| {
        let (DeviceName::Word(name) | DeviceName::Gpu(name, _) | DeviceName::Mig(name, _)) =
            &device.name;
        (name.as_str(), device.intents.is_empty())
    });
    check(summary, &warnings, Mode::Nvml)?;
    common.push(Intent::void());
    sort(&mut common);
    devices
        .iter_mut()
        .for_each(|device| sort(&mut device.intents));
    let devices = devices.into_iter().flat_map(|device| device.intents);
    let mut seen = HashSet::new();
    let intents = devices.chain(common);
    let intents = intents.filter(|intent| seen.insert(intent.clone()));
    Ok(ContainerPlan {
        intents: intents.collect(),
        warnings,
        host,
    })
}
