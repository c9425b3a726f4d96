//! Decides whether a container gets GPUs, and which: the only place in the toolkit that does.
//!
//! Everything here is pure. It takes plain values (environment, mounts, annotations, privilege) and a [`Policy`], and
//! returns a [`ContainerRequest`] or an [`Error`]; anything not requested by these is not granted. The hook and the
//! runtime call the same functions, so they cannot disagree. Only where two sources name GPUs in different ways, a
//! [`Machine`] answers which ones are the same.

pub mod annotations;
pub mod capabilities;
pub mod devices;
mod distinct;
pub mod environment;
pub mod features;
mod kinds;
mod legacy;
pub mod mig_management;
mod mounts;
pub mod names;
mod narrow;
pub mod privilege;
pub mod qualified;
pub mod requirements;
#[cfg(test)]
mod tests;
mod variables;

use std::fmt;

use libnvc::request::{self, Capabilities, MAX_NAMES};

use crate::config::Config;
use crate::config::keys::ACCEPT_CDI_KINDS;
use devices::Source;
pub use devices::{DeviceChoice, Devices, Origin};
pub use environment::Environment;
use kinds::Kinds;
pub use mounts::Mount;
pub use narrow::{Denoted, Machine, NodeNumber};

/// Variables that list devices whose MIG instances a container may manage.
const MIG_CONFIG: &str = "NVIDIA_MIG_CONFIG_DEVICES";
const MIG_MONITOR: &str = "NVIDIA_MIG_MONITOR_DEVICES";

/// The input from a container.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// The environment of its process.
    pub environment: Environment,
    pub mounts: Vec<Mount>,
    pub annotations: Vec<(String, String)>,
    /// True if it is privileged.
    pub privileged: bool,
}

/// The administrator's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Ignore requirements.
    pub disable_require: bool,
    /// Variables that narrow `NVIDIA_VISIBLE_DEVICES`.
    pub swarm_resources: Vec<String>,
    /// Accept requests in the environment of an unprivileged container.
    pub accept_environment: bool,
    /// Accept requests by mounts.
    pub accept_mounts: bool,
    /// Accept requests for other devices in the environment of an unprivileged container whose GPUs came by mounts.
    pub accept_features: bool,
    /// Prefixes of annotations that can be requests; empty if none can.
    pub annotation_prefixes: Vec<String>,
    /// Let annotations decide alone, in every container.
    pub accept_annotations: bool,
    /// The kind of CDI names without a kind.
    pub default_kind: String,
    /// More kinds that the environment may name.
    pub accept_cdi_kinds: Vec<String>,
    /// Driver capabilities that containers may have.
    pub supported: Capabilities,
    /// Ignore requests for IMEX channels.
    pub ignore_imex: bool,
}

impl Policy {
    /// Returns the policy of a configuration, for a program that ignores annotations.
    ///
    /// # Errors
    /// Unknown capabilities in `supported-driver-capabilities`.
    pub fn new(config: &Config) -> Result<Self, Error> {
        Ok(Self {
            disable_require: config.disable_require,
            swarm_resources: request::names(&config.swarm_resource)
                .map(str::to_owned)
                .collect(),
            accept_environment: config.accept_envvar_unprivileged,
            accept_mounts: config.accept_volume_mounts,
            accept_features: config.accept_features_unprivileged,
            annotation_prefixes: Vec::new(),
            accept_annotations: config.accept_annotations,
            default_kind: config.runtime.cdi_default_kind.clone(),
            accept_cdi_kinds: config.accept_cdi_kinds.clone(),
            supported: capabilities::supported(&config.supported_driver_capabilities)?,
            ignore_imex: config.features.ignore_imex_channel_requests,
        })
    }

    /// Returns true if requests in the environment of this container count.
    pub fn accepts_environment_of(&self, container: &Container) -> bool {
        container.privileged || self.accept_environment
    }

    fn kinds(&self) -> Kinds<'_> {
        Kinds {
            default: &self.default_kind,
            accepted: &self.accept_cdi_kinds,
        }
    }

    /// Ignores annotations, like a mode that adds no CDI devices by name.
    #[must_use]
    pub fn without_annotations(mut self) -> Self {
        self.annotation_prefixes.clear();
        self
    }

    /// Reads annotations too.
    #[must_use]
    pub fn with_annotations(mut self, config: &Config) -> Self {
        let prefixes = config.runtime.cdi_annotation_prefixes.iter();
        // An empty prefix would make every annotation a request.
        self.annotation_prefixes = prefixes
            .filter(|prefix| !prefix.is_empty())
            .cloned()
            .collect();
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    pub devices: Devices,
    /// Origin of the request.
    pub origin: Origin,
    /// Devices whose MIG configuration the container may change, as written by the container.
    pub mig_config: Option<String>,
    /// Devices whose MIG configuration the container may monitor, as written by the container.
    pub mig_monitor: Option<String>,
    pub imex_channels: Vec<u32>,
    /// Parts of the driver.
    pub capabilities: Capabilities,
    /// Requirements on the driver and the GPUs.
    pub requirements: Vec<String>,
}

/// A container's request, and warnings about ignored ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// None if this is not a GPU container.
    pub request: Option<ContainerRequest>,
    /// Warnings for the administrator.
    pub warnings: Vec<String>,
}

/// Returns the request of a container. `chosen` are its devices, if the runtime has made the [`devices::choice`] already.
///
/// # Errors
/// Too many names, those of [`devices::choice`], a privileged request of an unprivileged container, unsupported
/// capabilities, or an invalid CUDA version.
pub fn request(
    container: &Container,
    policy: &Policy,
    chosen: Option<Devices>,
    machine: &dyn Machine,
) -> Result<Answer, Error> {
    names::check(container, policy)?;
    let (choice, mut warnings) = match chosen {
        Some(devices) => {
            let origin = Origin::Runtime;
            (Some(DeviceChoice { devices, origin }), Vec::new())
        }
        None => devices::choice(container, policy, machine)?,
    };
    let Some(DeviceChoice { devices, origin }) = choice else {
        let request = None;
        return Ok(Answer { request, warnings });
    };
    let authority = |name: &'static str| {
        let value = container.environment.get(name);
        let value = value.filter(|value| !value.is_empty());
        match value {
            Some(_) if !container.privileged => Err(Error::Unprivileged(name)),
            _ => Ok(value.map(str::to_owned)),
        }
    };
    let mig_config = authority(MIG_CONFIG)?;
    let mig_monitor = authority(MIG_MONITOR)?;
    let (imex_channels, ignored) = devices::imex_channels(container, policy)?;
    warnings.extend(ignored);
    let request = ContainerRequest {
        devices,
        origin,
        mig_config,
        mig_monitor,
        imex_channels,
        capabilities: capabilities::of(&container.environment, policy.supported)?,
        requirements: requirements::of(&container.environment, policy.disable_require)?,
    };
    Ok(Answer {
        request: Some(request),
        warnings,
    })
}

/// The reason why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// An entry of the environment has no `=`.
    NotAVariable(String),
    /// A list names too many devices.
    TooManyNames {
        /// The variable, or where else the list is.
        source: String,
        /// The number of names.
        number: usize,
    },
    /// The variable requests MIG management, but the container is not privileged.
    Unprivileged(&'static str),
    /// A container of mode jit-cdi may not manage MIG devices; the whole text.
    MigManagement(String),
    /// Unsupported capabilities were requested.
    Capabilities {
        requested: String,
        /// The allowed ones among them.
        allowed: String,
    },
    /// The configuration allows unknown capabilities.
    NoSuchCapability(String),
    /// The image's CUDA version is invalid.
    CudaVersion(String),
    /// A device of a kind that only the administrator can allow.
    Kind {
        /// The device.
        name: String,
        kind: String,
        /// The source that names it.
        by: Origin,
    },
    /// A mount names a CDI device in a form that does not exist.
    MountName(String),
    /// A mount names several devices.
    MountList(String),
    /// A name of no IMEX channel.
    ImexChannel(String),
    /// An annotation has a name of no CDI device, and others have some.
    NoCdiName {
        /// The annotation.
        key: String,
        value: String,
    },
    /// Two sources that both count have no GPU in common.
    NothingLeft {
        /// The requested GPUs.
        requested: String,
        /// The source that requests them.
        by: Origin,
        /// The GPUs that the other source allows.
        allowed: String,
        /// The other source.
        allowed_by: Origin,
    },
    /// Two lists of names could not be compared.
    Compare {
        /// One list.
        names: String,
        /// The other.
        with: String,
        cause: String,
    },
}

impl Error {
    fn kind(name: &str, by: Origin) -> Self {
        let kind = nvc_cdi::names::parse(name).map_or(name, |name| name.kind);
        Self::Kind {
            kind: kind.into(),
            name: name.into(),
            by,
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAVariable(entry) => write!(out, "invalid environment variable: {entry}"),
            Self::TooManyNames { source, number } => write!(
                out,
                "{source}: too many device names: {number} (a request has at most {MAX_NAMES})"
            ),
            Self::Unprivileged(name) => {
                let name = name.strip_prefix("NVIDIA_").unwrap_or(name);
                write!(out, "cannot set {name} in non privileged container")
            }
            Self::MigManagement(text) => out.write_str(text),
            Self::Capabilities { requested, allowed } => write!(
                out,
                "unsupported capabilities found in '{requested}' (allowed '{allowed}') (hint: \
                 NVIDIA_DRIVER_CAPABILITIES takes all, or a list of {})",
                Capabilities::all()
            ),
            Self::NoSuchCapability(names) => write!(
                out,
                "invalid value for supported-driver-capabilities: no such capability: {names} (there are {})",
                Capabilities::all()
            ),
            Self::CudaVersion(version) => write!(
                out,
                "failed to get requirements failed to get version: invalid CUDA version {version}: invalid version string"
            ),
            Self::Kind { name, kind, by } if kinds::is_for_managers(kind) => write!(
                out,
                "devices for the driver's managers need CAP_SYS_ADMIN in the container ({ACCEPT_CDI_KINDS} = [\"{kind}\"] in \
                 config.toml would give them to every image): {by} names {name}"
            ),
            Self::Kind { name, kind, by } => write!(
                out,
                "{by} names {name}: devices of this kind need {ACCEPT_CDI_KINDS} = [\"{kind}\"] in config.toml"
            ),
            Self::MountName(name) => write!(
                out,
                "invalid mount request for CDI device {name}: {} need names of the form cdi/VENDOR/CLASS/DEVICE",
                Origin::Mounts
            ),
            Self::MountList(name) => write!(
                out,
                "invalid mount request {name}: each of the {} names one device",
                Origin::Mounts
            ),
            Self::ImexChannel(name) => write!(
                out,
                "error parsing IMEX info: unsupported IMEX channel value: {name} (channels are numbers, separated by commas)"
            ),
            Self::NoCdiName { key, value } => write!(
                out,
                "annotation {key} is \"{value}\", which is no list of CDI devices (VENDOR/CLASS=DEVICE)"
            ),
            Self::NothingLeft {
                requested,
                by,
                allowed,
                allowed_by,
            } => write!(
                out,
                "no GPU is left: {by} names {requested}, but {allowed_by} names {allowed}"
            ),
            Self::Compare { names, with, cause } => {
                write!(out, "cannot compare the GPUs {names} with {with}: {cause}")
            }
        }
    }
}
