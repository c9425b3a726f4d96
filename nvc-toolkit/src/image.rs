//! Decides whether a container gets GPUs, and which: the one place in the toolkit where that is decided.
//!
//! Everything here is pure. It takes plain values (environment, mounts, annotations, privilege) and a [`Policy`], and
//! gives a [`Request`] or an [`Error`]; what is not asked for by one of these is not given. The hook and the runtime
//! call the same functions, so they cannot disagree.

pub mod capabilities;
pub mod devices;
pub mod environment;
pub mod features;
mod legacy;
mod mounts;
pub mod privilege;
pub mod qualified;
pub mod requirements;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::config::Config;
use capabilities::Capabilities;
pub use devices::{Devices, Origin, Wish};
pub use environment::Environment;
pub use mounts::Mount;

/// What a container brings along.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// The environment of its process.
    pub environment: Environment,
    /// Its mounts.
    pub mounts: Vec<Mount>,
    /// Its annotations.
    pub annotations: Vec<(String, String)>,
    /// Whether it may do nearly everything on the host anyway.
    pub privileged: bool,
}

/// What the administrator allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Requirements are not checked.
    pub disable_require: bool,
    /// Variables that come before `NVIDIA_VISIBLE_DEVICES`.
    pub swarm_resources: Vec<String>,
    /// Requests in the environment of an unprivileged container count.
    pub accept_environment: bool,
    /// Requests made by mounts count.
    pub accept_mounts: bool,
    /// Prefixes of annotations that count; empty where annotations do not.
    pub annotation_prefixes: Vec<String>,
    /// Driver capabilities that containers may have.
    pub supported: Capabilities,
    /// IMEX channels are not given on request.
    pub ignore_imex: bool,
}

impl Policy {
    /// The policy of a configuration, for a program that does not look at annotations.
    ///
    /// # Errors
    /// Capabilities that do not exist in `supported-driver-capabilities`.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let names = config.swarm_resource.split(',').map(str::trim);
        Ok(Self {
            disable_require: config.disable_require,
            swarm_resources: names
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            accept_environment: config.accept_envvar_unprivileged,
            accept_mounts: config.accept_volume_mounts,
            annotation_prefixes: Vec::new(),
            supported: capabilities::supported(&config.supported_driver_capabilities)?,
            ignore_imex: config.features.ignore_imex_channel_requests,
        })
    }

    /// The same policy where annotations count too.
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

/// All that a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The GPUs.
    pub devices: Devices,
    /// Where the request for them came from.
    pub origin: Origin,
    /// Devices whose MIG configuration the container may change, as the container wrote them.
    pub mig_config: Option<String>,
    /// Devices whose MIG configuration the container may watch, as the container wrote them.
    pub mig_monitor: Option<String>,
    /// IMEX channels.
    pub imex_channels: Vec<String>,
    /// Parts of the driver.
    pub capabilities: Capabilities,
    /// What the driver and the GPUs must fulfil.
    pub requirements: Vec<String>,
}

/// What a container asked for, and what was not listened to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// None: this is no GPU container.
    pub request: Option<Request>,
    /// What the administrator may wonder about.
    pub warnings: Vec<String>,
}

/// The whole request of a container.
///
/// # Errors
/// Authority that an unprivileged container may not have, capabilities that are not supported, a CUDA version that
/// is none.
pub fn request(container: &Container, policy: &Policy) -> Result<Answer, Error> {
    let (wish, mut warnings) = devices::wish(container, policy);
    let Some(Wish { devices, origin }) = wish else {
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
    let mig_config = authority("NVIDIA_MIG_CONFIG_DEVICES")?;
    let mig_monitor = authority("NVIDIA_MIG_MONITOR_DEVICES")?;
    let (imex_channels, ignored) = devices::imex_channels(container, policy);
    warnings.extend(ignored);
    let request = Request {
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

/// Why a container does not get what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// An entry of the environment has no `=`.
    NotAVariable(String),
    /// The variable asks for authority over MIG, the container is not privileged.
    Unprivileged(&'static str),
    /// Capabilities were asked for that are not supported here.
    Capabilities {
        /// What was asked for.
        requested: String,
        /// What of it is allowed.
        allowed: String,
    },
    /// The configuration allows capabilities that do not exist.
    NoSuchCapability(String),
    /// The image names a CUDA version that is none.
    CudaVersion(String),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAVariable(entry) => write!(out, "invalid environment variable: {entry}"),
            Self::Unprivileged(name) => {
                let name = name.strip_prefix("NVIDIA_").unwrap_or(name);
                write!(out, "cannot set {name} in non privileged container")
            }
            Self::Capabilities { requested, allowed } => write!(
                out,
                "unsupported capabilities found in '{requested}' (allowed '{allowed}')"
            ),
            Self::NoSuchCapability(names) => write!(
                out,
                "invalid value for supported-driver-capabilities: no such capability: {names} (there are {})",
                Capabilities::ALL
            ),
            Self::CudaVersion(version) => write!(
                out,
                "failed to get requirements failed to get version: invalid CUDA version {version}: invalid version string"
            ),
        }
    }
}
