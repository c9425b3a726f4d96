//! Edits the config.json of a container to be created, if it requests GPUs.

use std::io;
use std::path::Path;

use nvc_hostfile::cause;
use nvc_oci::spec::Spec;
use nvc_oci::{bundle, lenient};
use nvc_policy::config::Config;
use nvc_policy::container;
use nvc_policy::image::{self, Container, DeviceChoice, Devices, Policy, annotations};
use nvc_policy::mode::{self, Mode};
use nvc_policy::platform;
use nvc_policy::this_machine::ThisMachine;
use nvc_program::messages::Level;

use crate::arguments::Line;
use crate::error::{Result, refused};
use crate::job::{GpuRequest, Job, nodes};
use crate::log::Log;
use crate::modes;
use crate::place::Place;
use crate::{crun, injection, mount_namespace, protection, spec_edits};

/// What upstream says before a failure to read or understand a request.
pub(crate) const NOT_CREATED: &str = "failed to create NVIDIA Container Runtime";
const NOT_CONSTRUCTED: &str = "failed to construct OCI spec modifier";

/// What it says before a failure to grant one.
const NOT_APPLIED: &str =
    "could not apply required modification to OCI specification: error modifying OCI spec";

/// Edits the config.json that `runtime` will read. Without such a file there is no request, and `runtime` says what is
/// wrong, or prints its help.
///
/// # Errors
/// config.json cannot be read, it or the mode is invalid, or the request cannot be granted.
pub(crate) fn edit(line: &Line, config: &Config, runtime: &Path, log: &mut Log) -> Result<()> {
    let Some(place) = Place::find(line, runtime) else {
        return Ok(());
    };
    let file = &place.file;
    let Some(request) = read(file, config, log).map_err(|error| error.context(NOT_CREATED))? else {
        return Ok(());
    };
    grant(&place, request, config, runtime, log).map_err(|error| error.context(NOT_APPLIED))
}

/// A container's specification, and what it asks for.
struct ContainerSpec {
    spec: Spec,
    container: Container,
    policy: Policy,
    mode: Mode,
    choice: Option<DeviceChoice>,
}

/// Reads a specification and decides about it; None if the real runtime must report that it is invalid.
fn read(file: &Path, config: &Config, log: &mut Log) -> Result<Option<ContainerSpec>> {
    let failed = |what: String| refused(what).context(NOT_CONSTRUCTED);
    let text = match bundle::read(file) {
        Ok(text) => text,
        Err(error) if is_missing(&error) => {
            log.write(Level::Debug, &format!("there is no {}", file.display()));
            return Ok(None);
        }
        Err(error) => {
            let (file, cause) = (file.display(), cause::text(&error));
            return Err(failed(format!(
                "failed to load OCI spec: error opening OCI specification file: open {file}: {cause}"
            )));
        }
    };
    let policy = policy(config)?;
    let (value, facts) = match understand(&text) {
        Ok(understood) => understood,
        // The real runtime reports this.
        Err(_) if !mentions_gpus(&text, &policy) => return Ok(None),
        Err(error) => {
            return Err(error
                .context(
                    "failed to load OCI spec: error loading OCI specification from file: error reading OCI specification",
                )
                .context(NOT_CONSTRUCTED));
        }
    };
    drop(text);
    let container = facts
        .container()
        .map_err(|error| failed(error.to_string()))?;
    let decided = decide(&container, config, &policy, log);
    let (mode, choice) = decided.map_err(|error| error.context(NOT_CONSTRUCTED))?;
    Ok(Some(ContainerSpec {
        spec: Spec::new(value),
        container,
        policy,
        mode,
        choice,
    }))
}

/// Adds the requested devices to the specification, and writes it if it changed.
fn grant(
    place: &Place,
    request: ContainerSpec,
    config: &Config,
    runtime: &Path,
    log: &mut Log,
) -> Result<()> {
    let ContainerSpec {
        mut spec,
        container,
        policy,
        mode,
        choice,
    } = request;
    let before = spec.clone();
    spec_edits::forget(&mut spec, choice.is_some())?;
    match &choice {
        Some(choice) => {
            mount_namespace::check(spec.value())?;
            place.check()?;
            let request = GpuRequest {
                choice,
                container: &container,
                policy: &policy,
            };
            let spec = &mut spec;
            // Other runtimes say it in the state that they pass to hooks.
            let told = crun::is_crun(runtime).then_some(place);
            modes::serve(
                mode,
                Job {
                    spec,
                    request,
                    config,
                    log,
                    place,
                    told,
                },
            )?;
        }
        // An engine may have added the hook even if no GPU is requested.
        None if mode != Mode::Legacy => injection::remove(&mut spec)?,
        // An earlier run may have chosen GPUs for it.
        None => injection::forget(&mut spec)?,
    }
    complete(&mut spec, runtime, choice.is_some())?;
    if spec == before {
        return Ok(());
    }
    let written = bundle::replace(&place.file, &spec.text());
    written.map_err(|error| {
        let (file, cause) = (place.file.display(), cause::text(&error));
        refused(format!("error writing {file}: {cause}"))
    })
}

/// Protects hooks and shows their messages, after all of them are there.
fn complete(spec: &mut Spec, runtime: &Path, gives_gpu: bool) -> Result<()> {
    protection::protect(spec, gives_gpu)?;
    if gives_gpu {
        crun::show_messages(spec, runtime)
    } else {
        Ok(())
    }
}

/// Returns true if there is no file, or no bundle.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn policy(config: &Config) -> Result<Policy> {
    // The hook reports errors of this key; until then, nothing is supported.
    let lenient = || Config {
        supported_driver_capabilities: String::new(),
        ..config.clone()
    };
    let policy = Policy::new(config).or_else(|_| Policy::new(&lenient()));
    let policy = policy.map_err(refused)?;
    Ok(policy.with_annotations(config))
}

fn understand(text: &[u8]) -> Result<(serde_json::Value, container::Facts)> {
    let value = lenient::first_unique_value(text)?;
    let facts = container::facts(&value).map_err(refused)?;
    Ok((value, facts))
}

/// Returns true if an invalid text may be that of a GPU container.
fn mentions_gpus(text: &[u8], policy: &Policy) -> bool {
    let words = [
        "NVIDIA_",
        "CUDA_VERSION",
        "nvidia-container-devices",
        "nvidia-container-runtime-hook",
        "nvidia-container-toolkit",
    ];
    let text = String::from_utf8_lossy(text);
    let more = policy
        .swarm_resources
        .iter()
        .chain(&policy.annotation_prefixes);
    let mut words = words.into_iter().chain(more.map(String::as_str));
    words.any(|word| text.contains(word))
}

/// Determines the container's request and the mode.
fn decide(
    container: &Container,
    config: &Config,
    policy: &Policy,
    log: &mut Log,
) -> Result<(Mode, Option<DeviceChoice>)> {
    image::names::check(container, policy).map_err(refused)?;
    let configured = Mode::configured(config)?;
    let reads_annotations = match configured {
        // Annotations can only request CDI devices.
        Some(mode) => mode == Mode::Cdi,
        None => annotations::name_cdi_devices(container, policy).map_err(refused)?,
    };
    if configured.is_none()
        && !reads_annotations
        && let Some(warning) = annotations::ignored(container, policy)
    {
        log.write(Level::Warning, &warning);
    }
    let ignoring;
    let policy = if reads_annotations {
        policy
    } else {
        ignoring = policy.clone().without_annotations();
        &ignoring
    };
    let machine = ThisMachine::new(config);
    let (choice, warnings) =
        image::devices::choice(container, policy, &machine).map_err(refused)?;
    let devices = choice.as_ref().map(|choice| &choice.devices);
    // NVML's answers may make it mode csv. Without a request the kind of machine does not matter.
    let is_jetson = || devices.is_some() && platform::is_jetson_without_nvml(&nodes(config).root);
    let chosen = mode::choose(
        config,
        devices.unwrap_or(&Devices::None),
        is_jetson,
        Mode::JitCdi,
    )?;
    for warning in &warnings {
        log.write(Level::Warning, warning);
    }
    let said = match &choice {
        Some(DeviceChoice { devices, origin }) => {
            format!("devices {devices} by {origin}; {}", chosen.said)
        }
        None => "no GPU is requested".into(),
    };
    log.write(Level::Info, &said);
    Ok((chosen.mode, choice))
}
