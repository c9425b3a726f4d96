//! Configures a container with the driver and the chosen devices, or prints the plan.

use libnvc::Configuration;
use libnvc::host::query::QueryProcess;
use libnvc::options::LibraryOptions;
use libnvc::request::{ImageOptions, Policy, Request};

use super::{Power, driver_config, tell_if_slow};
use crate::failure::CommandError;
use crate::logging;
use crate::output;
use crate::request::{Configure, Global};

pub(super) fn run(
    global: &Global,
    configure: &Configure,
    query: QueryProcess,
) -> Result<(), CommandError> {
    let power = match configure.dry_run {
        Some(_) => Power::Reads,
        None => Power::Changes,
    };
    let mut request = request(global, configure, power)?;
    if configure.dry_run.is_some() {
        // A dry run changes nothing, the host included.
        let options = &mut request.policy.driver.options;
        options.remove(LibraryOptions::LOAD_KMODS);
    }
    let mut configuration = Configuration::begin(&request, query)?;
    tell_if_slow(configuration.session());
    if let Some(format) = configure.dry_run {
        let (plan, image) = configuration.plan(configure.target())?;
        return output::plan(format, &plan, &image);
    }
    logging::begin_container();
    let report = configuration
        .prepare(configure.target())?
        .apply_before_exit()?;
    for reason in &report.skipped {
        log::warn!("skipped (optional): {}", reason.message());
    }
    Ok(())
}

fn request(global: &Global, configure: &Configure, power: Power) -> Result<Request, CommandError> {
    Ok(Request {
        devices: configure.devices.clone(),
        capabilities: configure.capabilities,
        requirements: configure.requirements.clone(),
        policy: Policy {
            driver: driver_config(global, power)?,
            driver_options: configure.driver_options,
            device_nodes: configure.device_nodes,
            device_rules: configure.device_rules,
            cuda_compat: configure.cuda_compat,
            image: ImageOptions {
                ldconfig: configure.ldconfig.clone(),
                ..ImageOptions::default()
            },
            no_pivot: global.no_pivot,
            ..Policy::default()
        },
    })
}
