//! Configures a container with the driver and the chosen devices, or prints the plan.

use libnvc::request::{ImageOptions, Policy, Request};
use libnvc::{Configuration, Prepared, Report};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use super::{Power, Query, driver_config, tell_if_slow};
use crate::failure::Failure;
use crate::output;
use crate::request::{Configure, Global};

/// Plans up to this length need fewer descriptors than the default soft limit of 1024.
const INTENTS_WITHIN_LIMITS: usize = 300;

/// Signals by which users and supervisors stop a program that may still clean up.
const INTERRUPTIONS: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
];

pub(super) fn run(global: &Global, configure: &Configure, query: Query) -> Result<(), Failure> {
    let power = match configure.dry_run {
        Some(_) => Power::Reads,
        None => Power::Changes,
    };
    let request = request(global, configure, power)?;
    let mut configuration = Configuration::begin(&request, query)?;
    tell_if_slow(configuration.session());
    if let Some(format) = configure.dry_run {
        let (plan, image) = configuration.plan(configure.target())?;
        return output::plan(format, &plan, &image);
    }
    let report = carry_out(configuration.prepare(configure.target())?)?;
    for reason in &report.skipped {
        log::warn!("going on without it: {}", reason.message());
    }
    Ok(())
}

fn request(global: &Global, configure: &Configure, power: Power) -> Result<Request, Failure> {
    Ok(Request {
        devices: configure.devices.clone(),
        capabilities: configure.capabilities,
        requirements: configure.requirements.clone(),
        policy: Policy {
            driver: driver_config(global, power, &configure.devices.imex_channels)?,
            leave_out: configure.driver,
            compat32: configure.compat32,
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

fn carry_out(prepared: Prepared<'_>) -> Result<Report, Failure> {
    if prepared.plan.flattened().len() > INTENTS_WITHIN_LIMITS {
        raise_descriptor_limit();
    }
    // An interrupted configuration is all or nothing too: the signal is delivered when the work is done or undone. The
    // delay is limited, mostly by ldconfig's deadline.
    let waiting = SigSet::from_iter(INTERRUPTIONS).thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = prepared.apply(true);
    if let Ok(before) = waiting {
        // Cannot fail for a mask that was in force.
        let _ = before.thread_set_mask();
    }
    Ok(result?)
}

/// Raises the descriptor limit to the hard limit: machines with many GPUs in MIG mode need thousands.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = limit {
        log::info!("keeping the limit of descriptors: {errno}");
    }
}
