//! Edits the config.json of a container to be created, if it requests GPUs.

use std::path::Path;

use libnvc::messages::Level;
use nvc_hostfile::cause;
use nvc_oci::spec::Spec;
use nvc_oci::{bundle, lenient, paths};
use nvc_policy::config::{self, Config};
use nvc_policy::container;
use nvc_policy::image::{self, Container, Policy, Wish, annotations};
use nvc_policy::mode::{self, Mode, Setting};
use nvc_policy::platform;
use nvc_policy::this_machine::ThisMachine;

use crate::arguments::{Bundle, Line};
use crate::log::Log;
use crate::{char_links, crun, devices, injection, jetson, legacy, protection};

/// The reason why a container is not created.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// config.json cannot be read, or it or the mode is invalid.
    Specification(String),
    /// The request cannot be granted; with a hint if there is one.
    Modification(String, Option<String>),
}

/// The reason why a specification cannot be changed.
#[derive(Debug)]
pub(crate) struct EditError {
    text: String,
    hint: Option<String>,
}

impl From<String> for EditError {
    fn from(text: String) -> Self {
        Self { text, hint: None }
    }
}

impl std::fmt::Display for EditError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.text)
    }
}

impl EditError {
    /// Creates a failure with a hint.
    pub(crate) fn with_hint(text: String, hint: &str) -> Self {
        let hint = Some(hint.to_owned());
        Self { text, hint }
    }

    /// Converts a failure of libnvc or of the registry, with its hint.
    pub(crate) fn of(what: &str, error: &libnvc::Error) -> Self {
        Self {
            text: format!("{what}{}", error.message()),
            hint: error.advice().map(str::to_owned),
        }
    }
}

/// Edits the command line's bundle, which `runtime` will start.
pub(crate) fn edit(
    line: &Line,
    config: &Config,
    runtime: &Path,
    log: &mut Log,
) -> Result<(), CreateError> {
    let file = specification(&line.bundle).map_err(CreateError::Specification)?;
    let file = Path::new(&file);
    let text = bundle::read(file).map_err(|error| {
        let (file, cause) = (file.display(), cause::text(&error));
        CreateError::Specification(format!(
            "failed to construct OCI spec modifier: failed to load OCI spec: error opening OCI specification file: open \
             {file}: {cause}"
        ))
    })?;
    let policy = policy(config).map_err(CreateError::Specification)?;
    let (value, facts) = match understand(&text) {
        Ok(understood) => understood,
        // The real runtime reports this.
        Err(_) if !mentions_gpus(&text, &policy) => return Ok(()),
        Err(what) => {
            return Err(CreateError::Specification(format!(
                "failed to construct OCI spec modifier: failed to load OCI spec: error loading OCI specification from \
                 file: error reading OCI specification: {what}"
            )));
        }
    };
    drop(text);
    let not_constructed =
        |what| CreateError::Specification(format!("failed to construct OCI spec modifier: {what}"));
    let container = facts
        .container()
        .map_err(|error| not_constructed(error.to_string()))?;
    let (mode, wish) = decide(&container, config, &policy, log).map_err(not_constructed)?;
    let mut spec = Spec::new(value);
    let before = spec.clone();
    let asked = Asked {
        mode,
        wish: wish.as_ref(),
        container: &container,
        policy: &policy,
    };
    let not_modified = |EditError { text, hint }| CreateError::Modification(text, hint);
    modify(&mut spec, &asked, config, log).map_err(not_modified)?;
    let completed = complete(&mut spec, runtime, asked.wish.is_some());
    completed.map_err(|text| not_modified(text.into()))?;
    if spec == before {
        return Ok(());
    }
    char_links::make(&spec, Path::new("/dev"));
    let written = bundle::replace(file, &spec.text());
    written.map_err(|error| {
        let (file, cause) = (file.display(), cause::text(&error));
        CreateError::Modification(format!("error writing {file}: {cause}"), None)
    })
}

/// Protects hooks and shows their messages, after all of them are there.
fn complete(spec: &mut Spec, runtime: &Path, gives_gpu: bool) -> Result<(), String> {
    protection::protect(spec, gives_gpu)?;
    match gives_gpu {
        true => crun::show_messages(spec, runtime),
        false => Ok(()),
    }
}

/// Returns the path of config.json.
fn specification(bundle: &Bundle) -> Result<String, String> {
    let directory = match bundle {
        Bundle::Here => ".".into(),
        Bundle::At(directory) => directory.to_string_lossy(),
        Bundle::Missing => {
            return Err("error constructing OCI specification: error getting bundle directory: error getting bundle dir \
                 from args: bundle option requires an argument"
                .into());
        }
    };
    Ok(paths::clean(&format!("{directory}/config.json")))
}

fn policy(config: &Config) -> Result<Policy, String> {
    // The hook reports errors of this key; until then, nothing is supported.
    let lenient = || Config {
        supported_driver_capabilities: String::new(),
        ..config.clone()
    };
    let policy = Policy::new(config).or_else(|_| Policy::new(&lenient()));
    let policy = policy.map_err(|error| error.to_string())?;
    Ok(policy.with_annotations(config))
}

fn understand(text: &[u8]) -> Result<(serde_json::Value, container::Facts), String> {
    let value = lenient::first_value(text)?;
    let facts = container::facts(&value).map_err(|error| error.to_string())?;
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
) -> Result<(Mode, Option<Wish>), String> {
    image::names::check(container, policy).map_err(|error| error.to_string())?;
    let setting = Setting::of(config);
    let reads_annotations = match &setting {
        Setting::Unknown(word) => return Err(format!("invalid mode \"{word}\"")),
        // Annotations can only request CDI devices.
        Setting::Fixed(mode) => *mode == Mode::Cdi,
        Setting::Auto => {
            annotations::name_cdi_devices(container, policy).map_err(|error| error.to_string())?
        }
    };
    if setting == Setting::Auto
        && !reads_annotations
        && let Some(warning) = annotations::ignored(container, policy)
    {
        log.write(Level::Warning, &warning);
    }
    let ignoring;
    let policy = match reads_annotations {
        true => policy,
        false => {
            ignoring = policy.clone().without_annotations();
            &ignoring
        }
    };
    let machine = ThisMachine::new(config);
    let (wish, warnings) =
        image::devices::wish(container, policy, &machine).map_err(|error| error.to_string())?;
    let mode = match (&setting, &wish) {
        (Setting::Fixed(mode), _) => *mode,
        (_, Some(wish)) => mode::automatic(&wish.devices, platform::is_tegra, Mode::JitCdi),
        // The kind of machine does not matter here.
        (_, None) => Mode::JitCdi,
    };
    for warning in &warnings {
        log.write(Level::Warning, warning);
    }
    let said = match &wish {
        Some(Wish { devices, origin }) => {
            let automatic = if setting == Setting::Auto {
                "automatic "
            } else {
                ""
            };
            let by = config.mode_origin();
            format!(
                "devices {devices} by {origin}; {automatic}mode {mode} ({}: {by})",
                config::MODE
            )
        }
        None => "no GPU is requested".into(),
    };
    log.write(Level::Info, &said);
    Ok((mode, wish))
}

/// A container's request and the mode.
struct Asked<'a> {
    mode: Mode,
    wish: Option<&'a Wish>,
    container: &'a Container,
    policy: &'a Policy,
}

/// Adds the requested devices to the specification.
fn modify(
    spec: &mut Spec,
    asked: &Asked<'_>,
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    let container = asked.container;
    let Some(wish) = asked.wish else {
        // An engine may have added the hook even if no GPU is requested.
        return match asked.mode {
            Mode::Legacy => Ok(()),
            Mode::Csv | Mode::Cdi | Mode::JitCdi => injection::remove(spec).map_err(Into::into),
        };
    };
    let policy = asked.policy;
    match asked.mode {
        Mode::Legacy => legacy::modify(spec, wish, container, policy, config, log),
        Mode::Csv => {
            injection::remove(spec)?;
            jetson::modify(spec, wish, container, policy, config, log)
        }
        Mode::Cdi | Mode::JitCdi => {
            injection::remove(spec)?;
            devices::modify(spec, asked.mode, wish, container, policy, config, log)
        }
    }
}
