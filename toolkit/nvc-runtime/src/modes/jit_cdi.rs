//! Adds GPUs as this machine's specification would, planned for the container.
//!
//! Upstream's specifications ignore `NVIDIA_DRIVER_CAPABILITIES` and `NVIDIA_REQUIRE_*`: every container gets all of the
//! driver's files, and nothing is checked. Two keys of the configuration change that.

use libnvc::request::{self, Capabilities, DeviceRequest, Request};
use libnvc::require::{self, Requirement};
use libnvc::survey::Host;
use libnvc::{Error, ErrorKind, Phase};
use nvc_cdi::Edits;
use nvc_generate::csv::Driver;
use nvc_generate::{
    Automatic, Channels, ContainerEdits, Draft, Mode, Options, VOID, for_container,
    for_container_unless_jetson, merge,
};
use nvc_policy::config::keys::{JIT_CAPABILITIES, JIT_REQUIREMENTS};
use nvc_policy::image::{
    DeviceChoice, Policy, capabilities, devices, mig_management, requirements,
};
use nvc_policy::mode;
use nvc_program::hints::{Reader, advice};
use nvc_program::messages::Level;

use crate::control_nodes;
use crate::error::{Result, refused};
use crate::explain::{self, Source};
use crate::job::{Job, one_of, options};
use crate::spec_edits;

/// A part of what the container gets, with the reason for it.
type Part = (Draft, &'static str);

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
    let ContainerEdits { edits, host, .. } = *found;
    if let Some(unmet) = host.as_ref().and_then(|host| demanded.unmet(host)) {
        job.warn(&unmet);
    }
    let mut parts = vec![(edits, "every container with a GPU of this machine")];
    parts.extend(features(job));
    parts.extend(channels(job)?);
    parts.extend(mig_rights(job, &managed)?);
    let (given, reasons): (Vec<Draft>, Vec<&str>) = parts.into_iter().unzip();
    let mut given = rendered(job, given);
    explain(job, &given, &reasons, host.as_ref());
    spec_edits::apply(job, &mut given)
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
            ..nvc_generate::policy()
        },
        devices: DeviceRequest {
            ids,
            ..DeviceRequest::default()
        },
    })
}

/// Finds the requested GPUs, after making the nodes that NVML needs.
fn gpus(job: &mut Job<'_>, request: Request) -> Result<Automatic<ContainerEdits>> {
    let all = options(Mode::Auto, job);
    let problems = control_nodes::create(job.config);
    let found = match mode::Mode::configured(job.config)? {
        None => for_container_unless_jetson(&all, request),
        _ => for_container(&all, &request).map(|edits| Automatic::Found(Box::new(edits))),
    };
    // A Jetson's lists say which nodes it has.
    if !matches!(found, Ok(Automatic::Jetson(_))) {
        problems.iter().for_each(|problem| job.warn(problem));
    }
    found.map_err(|error| not_found(&error, Mode::Auto))
}

/// Returns the edits for the features that variables of their own request.
fn features(job: &mut Job<'_>) -> Vec<Part> {
    let all = job.gated_features().into_iter().map(|edits| {
        let mut draft = Draft::from(edits);
        draft.add_variable(VOID);
        (draft, "a feature that its own variable requests")
    });
    all.collect()
}

/// Returns the edits for the requested IMEX channels.
fn channels(job: &mut Job<'_>) -> Result<Option<Part>> {
    let channels = devices::imex_channels(job.request.container, job.request.policy);
    let (channels, ignored) = channels.map_err(refused)?;
    if let Some(warning) = ignored {
        job.warn(&warning);
    }
    if channels.is_empty() {
        return Ok(None);
    }
    let options = Options {
        channels: Channels::Numbers(channels),
        ..options(Mode::Imex, job)
    };
    let found = for_container(&options, &Request::default());
    let found = found.map_err(|error| not_found(&error, Mode::Imex))?;
    warn(job, &found);
    Ok(Some((found.edits, "IMEX channels")))
}

/// Returns the edits for the rights to manage MIG devices; None, with a warning, on a machine without MIG.
fn mig_rights(job: &mut Job<'_>, managed: &[&str]) -> Result<Option<Part>> {
    if managed.is_empty() {
        return Ok(None);
    }
    let request = Request {
        devices: DeviceRequest {
            ids: managed.iter().map(ToString::to_string).collect(),
            ..DeviceRequest::default()
        },
        ..Request::default()
    };
    let options = options(Mode::MigCaps, job);
    match for_container(&options, &request) {
        Ok(found) => {
            warn(job, &found);
            let reason = "NVIDIA_MIG_CONFIG_DEVICES or NVIDIA_MIG_MONITOR_DEVICES";
            Ok(Some((found.edits, reason)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            job.warn(&error.message());
            Ok(None)
        }
        Err(error) => Err(not_found(&error, Mode::MigCaps)),
    }
}

/// Renders the drafts, with one hook for all of them if the program is ours.
fn rendered(job: &Job<'_>, mut given: Vec<Draft>) -> Vec<Edits> {
    // A foreign program would take the merged hook for an unknown one, exit 0 and do nothing.
    if job.hooks.is_ours() {
        merge(&mut given);
    }
    let program = job.hooks.chosen();
    let given = given.into_iter().map(|draft| draft.render(&program));
    given.collect()
}

/// Logs why the container gets what it gets.
fn explain(job: &mut Job<'_>, given: &[Edits], reasons: &[&str], host: Option<&Host>) {
    let DeviceChoice { devices, origin } = job.request.choice;
    let request = format!("{devices} by {origin}");
    for (edits, reason) in given.iter().zip(reasons) {
        let source = Source {
            host,
            reason,
            request: &request,
        };
        explain::edits(job.log, edits, &source);
    }
}

/// Logs warnings.
fn warn(job: &mut Job<'_>, found: &ContainerEdits) {
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
    match one_of(job.config, JIT_CAPABILITIES, value, &["ignore", "honour"])? {
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
        let words = ["warn", "honour", "ignore"];
        let value = &job.config.runtime.jit_requirements;
        let word = one_of(job.config, JIT_REQUIREMENTS, value, &words)?;
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
