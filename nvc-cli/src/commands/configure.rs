//! Puts the driver and the chosen devices into a container: discovers, plans, and applies or prints the plan.

use libnvc::ErrorKind;
use libnvc::apply::{Ahead, ApplyOptions};
use libnvc::container::{Container, ContainerConfig};
use libnvc::host::Gpu;
use libnvc::require::{self, Target};
use nix::unistd::getppid;

use super::{Power, Query, open};
use crate::choice::Choice;
use crate::failure::{Categorise, Failure, category};
use crate::output;
use crate::request::{Configure, Global};
use crate::session::Facts;

pub(super) fn run(global: &Global, configure: &Configure, query: Query) -> Result<(), Failure> {
    let power = match configure.dry_run {
        Some(_) => Power::Reads,
        None => Power::Changes,
    };
    let imex_channels = &configure.devices.imex_channels;

    // discover: both at once, errors in upstream's order
    let mut session = open(global, power, imex_channels, query)?;
    session.look_ahead(configure.driver);
    let container = Container::discover(
        &ContainerConfig {
            pid: configure.pid.unwrap_or_else(|| getppid().as_raw()),
            rootfs: configure.rootfs.clone(),
            ldconfig: configure.ldconfig.clone(),
            ..ContainerConfig::default()
        },
        configure.container,
    );
    let ahead = match (&container, configure.dry_run) {
        (Ok(container), None) => Ahead::prepare(container),
        _ => Ahead::default(),
    };
    session.ready().category(category::INITIALIZATION)?;
    let container = container.category(category::CONTAINER)?;
    let driver = session
        .driver_info(configure.driver)
        .category(category::DETECTION)?;
    let devices = session.devices().category(category::DETECTION)?;

    // plan
    let choice = Choice::make(&devices, &configure.devices)?;
    require::check(
        &configure.requirements,
        &driver.versions,
        &targets(&devices.gpus, &choice),
    )
    .category(category::REQUIREMENT)?;
    let plan = session
        .plan(&Facts {
            container: &container,
            driver: &driver,
            devices: &devices,
            choice: &choice,
            imex_channels,
        })
        .category(category::MOUNT)?;

    // apply
    if let Some(format) = configure.dry_run {
        return output::plan(format, &plan);
    }
    let options = ApplyOptions {
        no_pivot: global.no_pivot,
        stay: true, // all that remains is to say how it went
    };
    let applied = session.apply(&container, &plan, options, ahead);
    let category = match &applied {
        Err(error) if error.kind() == ErrorKind::LdCache => category::LDCACHE,
        _ => category::MOUNT,
    };
    applied.category(category)
}

/// What requirements are held against: the chosen GPUs, and the GPU of each chosen MIG device.
fn targets<'a>(gpus: &'a [Gpu], choice: &Choice) -> Vec<Target<'a>> {
    let chosen = &choice.selection;
    let parents = chosen.migs.iter().map(|(gpu, _)| gpu);
    let chosen = chosen.gpus.iter().chain(parents);
    chosen
        .filter_map(|&gpu| gpus.get(gpu))
        .map(|gpu| Target {
            arch: &gpu.arch,
            brand: &gpu.brand,
        })
        .collect()
}
