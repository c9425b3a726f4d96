//! Adds GPUs as this machine's specification would, planned for the container.
//!
//! Upstream's specifications ignore `NVIDIA_DRIVER_CAPABILITIES` and `NVIDIA_REQUIRE_*`: every container gets all of the
//! driver's files, and nothing is checked. Two keys of the configuration change that.

use libnvc::plan::Intent;
use libnvc::request::{self, Capabilities, DeviceRequest, Placement, Request};
use libnvc::require::{self, Requirement};
use libnvc::survey::Host;
use libnvc::{Error, ErrorKind, Phase};
use nvc_generate::csv::Driver;
use nvc_generate::{
    Automatic, Channels, ContainerPlan, Find, Mode, for_container, for_container_unless_jetson,
};
use nvc_policy::config::keys::{JIT_CAPABILITIES, JIT_REQUIREMENTS};
use nvc_policy::image::{Policy, capabilities, devices, mig_management, requirements};
use nvc_policy::mode;
use nvc_program::hints::{Reader, advice};
use nvc_program::messages::Level;

use crate::control_nodes;
use crate::error::{Result, refused};
use crate::job::{self, Job, one_of};
use crate::spec_edits;

/// Adds GPUs, and the other devices that the container requests. Adds nothing and returns the driver if the mode is
/// automatic and the GPUs are a Jetson's.
pub(super) fn serve(job: &mut Job<'_>, ids: &[&str]) -> Result<Option<Driver>> {
    let managed = mig_management::requested(job.request.container, ids).map_err(refused)?;
    let ids = nvc_generate::ids(ids)?;
    let demanded = Requirements::of(job)?;
    let request = request(job, ids, &demanded)?;
    let found = match gpus(job, request)? {
        Automatic::Found(found) => found,
        Automatic::Jetson(driver) => return Ok(Some(driver)),
    };
    warn(job, &found);
    let ContainerPlan {
        mut intents, host, ..
    } = *found;
    if let Some(unmet) = host.as_ref().and_then(|host| demanded.unmet(host)) {
        job.warn(&unmet);
    }
    intents.extend(job.gated_features());
    intents.extend(channels(job)?);
    intents.extend(mig_rights(job, &managed)?);
    spec_edits::give(job, &intents, None)
        .map_err(|error| error.context("failed to inject CDI devices"))
        .map(|()| None)
}

/// Returns the request for these GPUs.
fn request(job: &mut Job<'_>, ids: Vec<String>, demanded: &Requirements) -> Result<Request> {
    let capabilities = limit(job)?;
    let origin = job.config.origin(JIT_CAPABILITIES);
    let value = &job.config.runtime.jit_driver_capabilities;
    let text =
        format!("driver capabilities {capabilities} ({JIT_CAPABILITIES} = {value}: {origin})");
    job.log.write(Level::Debug, &text);
    Ok(Request {
        capabilities,
        requirements: if demanded.must_hold {
            demanded.all.clone()
        } else {
            Vec::new()
        },
        policy: request::Policy {
            demand_nodes: !ids.is_empty(),
            ..nvc_generate::policy(Placement::AsImage)
        },
        devices: DeviceRequest {
            ids,
            ..DeviceRequest::default()
        },
    })
}

/// Finds the requested GPUs, after making the nodes that NVML needs.
fn gpus(job: &mut Job<'_>, request: Request) -> Result<Automatic<ContainerPlan>> {
    let all = job::find(Mode::Auto, job.config);
    let problems = control_nodes::create(job.config);
    let found = match mode::Mode::configured(job.config)? {
        None => for_container_unless_jetson(&all, request),
        _ => for_container(&all, &request).map(|plan| Automatic::Found(Box::new(plan))),
    };
    // A Jetson's lists say which nodes it has.
    if !matches!(found, Ok(Automatic::Jetson(_))) {
        problems.iter().for_each(|problem| job.warn(problem));
    }
    found.map_err(|error| not_found(&error, Mode::Auto))
}

/// Returns the intents for the requested IMEX channels.
fn channels(job: &mut Job<'_>) -> Result<Vec<Intent>> {
    let channels = devices::imex_channels(job.request.container, job.request.policy);
    let (channels, ignored) = channels.map_err(refused)?;
    if let Some(warning) = ignored {
        job.warn(&warning);
    }
    if channels.is_empty() {
        return Ok(Vec::new());
    }
    let find = Find {
        channels: Channels::Numbers(channels),
        ..job::find(Mode::Imex, job.config)
    };
    let found = for_container(&find, &Request::default());
    let found = found.map_err(|error| not_found(&error, Mode::Imex))?;
    warn(job, &found);
    Ok(found.intents)
}

/// Returns the intents for the rights to manage MIG devices; none, with a warning, on a machine without MIG.
fn mig_rights(job: &mut Job<'_>, managed: &[&str]) -> Result<Vec<Intent>> {
    if managed.is_empty() {
        return Ok(Vec::new());
    }
    let request = Request {
        devices: DeviceRequest {
            ids: managed.iter().map(ToString::to_string).collect(),
            ..DeviceRequest::default()
        },
        ..Request::default()
    };
    match for_container(&job::find(Mode::MigCaps, job.config), &request) {
        Ok(found) => {
            warn(job, &found);
            Ok(found.intents)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            job.warn(&error.message());
            Ok(Vec::new())
        }
        Err(error) => Err(not_found(&error, Mode::MigCaps)),
    }
}

/// Logs warnings.
fn warn(job: &mut Job<'_>, found: &ContainerPlan) {
    for warning in &found.warnings {
        job.warn(warning);
    }
}

/// Returns the error of a mode that does not find a request's devices.
fn not_found(error: &Error, mode: Mode) -> Error {
    let name = match mode {
        Mode::Imex => "imex",
        Mode::MigCaps => "mig-caps",
        _ => "auto",
    };
    error.clone().context(match error.phase() {
        Some(phase @ Phase::Requirement) => phase.to_string(),
        _ => format!(
            "failed to create the automatic CDI modifier: failed to generate CDI spec for mode \"{name}\""
        ),
    })
}

/// Returns the parts of the driver that the container gets.
fn limit(job: &Job<'_>) -> Result<Capabilities> {
    let value = &job.config.runtime.jit_driver_capabilities;
    match one_of(job.config, JIT_CAPABILITIES, value)? {
        "ignore" => {
            let narrow = Capabilities::COMPAT32;
            let asked = capabilities::asked(&job.request.container.environment);
            Ok(Capabilities::all().difference(narrow) | (asked & narrow))
        }
        _ => {
            let supported = Policy::new(job.config).map_err(refused)?.supported;
            capabilities::of(&job.request.container.environment, supported).map_err(refused)
        }
    }
}

/// The container's requirements on the driver and on its GPUs.
#[derive(Debug, Default)]
struct Requirements {
    all: Vec<Requirement>,
    /// Otherwise one that does not hold is a warning.
    must_hold: bool,
}

impl Requirements {
    fn of(job: &mut Job<'_>) -> Result<Self> {
        let value = &job.config.runtime.jit_requirements;
        let word = one_of(job.config, JIT_REQUIREMENTS, value)?;
        if word == "ignore" {
            return Ok(Self::default());
        }
        let must_hold = word == "honour";
        let environment = &job.request.container.environment;
        let texts = requirements::of(environment, job.config.disable_require);
        match texts {
            Ok(texts) => Ok(Self {
                all: texts.into_iter().map(Requirement::new).collect(),
                must_hold,
            }),
            Err(error) if must_hold => Err(refused(error)),
            Err(error) => {
                job.warn(&starts_anyway(&error.to_string()));
                Ok(Self::default())
            }
        }
    }

    /// Returns a warning for the first that does not hold, if none must.
    fn unmet(&self, host: &Host) -> Option<String> {
        let versions = &host.driver.versions;
        // Without versions there is nothing to compare.
        if self.must_hold || versions.cuda.is_empty() {
            return None;
        }
        let gpus = host.chosen.with_parents();
        let error = require::check(&self.all, versions, &gpus).err()?;
        let error = error.context(Phase::Requirement);
        // It names the expression, if that is invalid.
        let hint = advice(&error, Reader::Engine).map(|hint| format!(" ({hint})"));
        let text = error.message() + &hint.unwrap_or_default();
        Some(starts_anyway(&text))
    }
}

fn starts_anyway(what: &str) -> String {
    format!("{what}; the container starts anyway ({JIT_REQUIREMENTS})")
}
