//! Combines the sources of a request: annotations, mounts and variables narrow each other.
//!
//! None of them says who wrote it: an image can have set each variable, and under some engines each annotation. So no
//! source gives a GPU that another source which counts does not allow.

use std::collections::HashSet;

use libnvc::select::parse_imex_channels;

use super::annotations::{self, AnnotatedDevices};
use super::kinds::is_imex_channel;
use super::narrow::{Machine, narrow};
use super::variables::{Variables, list};
use super::{Container, Error, Kinds, Policy, mounts};

pub use super::variables::VISIBLE_DEVICES;
use crate::config::keys::ACCEPT_ANNOTATIONS;

pub(super) const IMEX_CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";

/// GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// The driver's files and no GPU.
    None,
    /// Every GPU.
    All,
    /// GPUs by index, UUID, MIG index or CDI name: at least one, without duplicates and empty names.
    Names(Vec<String>),
}

impl Devices {
    /// Returns the names for nvidia-container-cli and CDI: `all` for all, empty for no GPUs.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::None => Vec::new(),
            Self::All => vec!["all"],
            Self::Names(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

impl std::fmt::Display for Devices {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => out.write_str("no GPU"),
            some => out.write_str(&some.names().join(",")),
        }
    }
}

/// Origin of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Annotations(Vec<String>),
    /// Mounts whose destinations name devices.
    Mounts,
    /// These variables.
    Environment(Vec<String>),
    /// An image from before the variable existed.
    LegacyImage,
    /// Our runtime has chosen them.
    Runtime,
    /// These annotations, narrowed by another source.
    Narrowed(Vec<String>, Box<Origin>),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Annotations(keys) => write!(out, "annotation {}", keys.join(", ")),
            Self::Mounts => write!(out, "mounts below {}", mounts::DIRECTORY),
            Self::Environment(names) => out.write_str(&names.join(", ")),
            Self::LegacyImage => out.write_str("CUDA_VERSION of an old image"),
            Self::Runtime => out.write_str("nvidia-container-runtime"),
            Self::Narrowed(keys, by) => {
                write!(out, "annotation {}, narrowed by {by}", keys.join(", "))
            }
        }
    }
}

/// Requested GPUs that the container may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    pub devices: Devices,
    /// Origin of the request.
    pub origin: Origin,
}

/// A source that names GPUs, or says that there are none.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// None if the source is `void` or empty.
    pub(super) devices: Option<Devices>,
    pub(super) origin: Origin,
}

impl Source {
    fn choice(self) -> Option<DeviceChoice> {
        let Self { devices, origin } = self;
        devices.map(|devices| DeviceChoice { devices, origin })
    }
}

/// Returns the granted GPUs, and warnings about ignored requests.
///
/// # Errors
/// Sources that count have no GPU in common, a variable names a device of a kind that it may not name, a mount has a name
/// of no device, or names cannot be compared because the driver does not respond.
pub fn choice(
    container: &Container,
    policy: &Policy,
    machine: &dyn Machine,
) -> Result<(Option<DeviceChoice>, Vec<String>), Error> {
    let mut warnings = Vec::new();
    let annotated = match annotations::read(container, policy) {
        Some(annotated) if policy.accept_annotations => {
            let choice = annotated.source().choice();
            return Ok((
                without_imex_channels(choice, policy, &mut warnings),
                warnings,
            ));
        }
        Some(annotated) if !policy.accepts_environment_of(container) => {
            warnings.push(annotations::refused(&annotated));
            None
        }
        Some(annotated) => {
            annotated.check(&policy.kinds(), container.privileged)?;
            Some(annotated)
        }
        None => None,
    };
    let other = without_annotations(container, policy, machine, &mut warnings)?;
    let choice = match (annotated, other) {
        (None, other) => other.and_then(Source::choice),
        (Some(annotated), None) => annotated.source().choice(),
        (Some(annotated), Some(other)) => {
            narrowed(annotated, other, &policy.kinds(), machine, &mut warnings)?
        }
    };
    Ok((
        without_imex_channels(choice, policy, &mut warnings),
        warnings,
    ))
}

/// Removes IMEX channels that are requested by CDI names, if the policy ignores such requests.
fn without_imex_channels(
    choice: Option<DeviceChoice>,
    policy: &Policy,
    warnings: &mut Vec<String>,
) -> Option<DeviceChoice> {
    let Some(DeviceChoice {
        devices: Devices::Names(names),
        origin,
    }) = choice
    else {
        return choice;
    };
    let is_refused = |name: &String| policy.ignore_imex && is_imex_channel(name);
    let (refused, names): (Vec<_>, Vec<_>) = names.into_iter().partition(is_refused);
    if !refused.is_empty() {
        warnings.push(format!(
            "Ignoring IMEX channels (features.ignore-imex-channel-requests in config.toml) requested by {origin}: [{}]",
            refused.join(" ")
        ));
    }
    (!names.is_empty()).then_some(DeviceChoice {
        devices: Devices::Names(names),
        origin,
    })
}

/// Returns what the mounts name, or else the variables; None if nothing that counts says anything about GPUs.
fn without_annotations(
    container: &Container,
    policy: &Policy,
    machine: &dyn Machine,
    warnings: &mut Vec<String>,
) -> Result<Option<Source>, Error> {
    let variables = Variables::read(&container.environment, policy);
    let mounted = if policy.accept_mounts {
        mounts::devices(&container.mounts)
    } else {
        Ok(Vec::new())
    };
    let are_mounted = mounted.as_ref().map_or(true, |names| !names.is_empty());
    if are_mounted {
        let origin = Origin::Mounts;
        if !variables.are_void() {
            let devices = Some(Devices::Names(mounted?));
            return Ok(Some(Source { devices, origin }));
        }
        // Another program has added the GPUs: each CDI specification sets this value.
        let names = variables.names().join(", ");
        warnings.push(format!(
            "Ignoring devices requested by {origin}: {names} is void"
        ));
    }
    if policy.accepts_environment_of(container) {
        if variables.refer_to_mounts() && !are_mounted {
            warnings.push(format!(
                "{VISIBLE_DEVICES} refers to {}, where nothing counts as a request",
                Origin::Mounts
            ));
        }
        warnings.extend(variables.ignored());
        return variables.source(&policy.kinds(), container.privileged, machine);
    }
    if variables.request_something() {
        let names = match variables.names() {
            names if names.is_empty() => vec![VISIBLE_DEVICES.into()],
            names => names,
        };
        warnings.push(ignoring(&names));
    }
    Ok(None)
}

/// Returns the devices of annotations that `by` allows. Only GPUs narrow GPUs: other devices count as well, if any GPU may.
fn narrowed(
    annotated: AnnotatedDevices,
    by: Source,
    kinds: &Kinds<'_>,
    machine: &dyn Machine,
    warnings: &mut Vec<String>,
) -> Result<Option<DeviceChoice>, Error> {
    let allowed = match by.devices {
        Some(ref allowed) if *allowed != Devices::None => allowed,
        _ => return Ok(without_gpus(annotated, by, kinds, warnings)),
    };
    let (gpus, others): (Vec<String>, Vec<String>) = annotated
        .names
        .iter()
        .cloned()
        .partition(|name| kinds.may_be_gpu(name));
    if gpus.is_empty() {
        return Ok(annotated.source().choice());
    }
    let left = narrow(&gpus, allowed, kinds, machine)?;
    let (annotation, requested) = (annotated.origin(), gpus.join(","));
    if left.is_empty() {
        return Err(Error::NothingLeft {
            requested,
            by: annotation,
            allowed: allowed.to_string(),
            allowed_by: by.origin,
        });
    }
    if left != gpus {
        let (other, left) = (&by.origin, left.join(","));
        warnings.push(format!(
            "{annotation} names {requested}, but {other} names {allowed}: the container gets {left}"
        ));
    }
    Ok(Some(DeviceChoice {
        devices: Devices::Names([left, others].concat()),
        origin: Origin::Narrowed(annotated.keys, Box::new(by.origin)),
    }))
}

/// Returns what is left of annotations if `by` is `none`, `void` or empty: the devices of other vendors, or else what
/// `by` requests.
fn without_gpus(
    annotated: AnnotatedDevices,
    by: Source,
    kinds: &Kinds<'_>,
    warnings: &mut Vec<String>,
) -> Option<DeviceChoice> {
    let annotation = annotated.origin();
    let all = annotated.names.len();
    let names = annotated.names.into_iter();
    let others: Vec<String> = names.filter(|name| !kinds.are_nvidias(name)).collect();
    if others.len() < all {
        let (origin, key) = (&by.origin, ACCEPT_ANNOTATIONS);
        let value = match by.devices {
            Some(_) => "none",
            None => "void or empty",
        };
        warnings.push(format!(
            "Ignoring devices requested by {annotation}: {origin} is {value} ({key} = true in config.toml lets \
             annotations decide alone)"
        ));
    }
    if others.is_empty() {
        return by.choice();
    }
    Some(DeviceChoice {
        devices: Devices::Names(others),
        origin: Origin::Narrowed(annotated.keys, Box::new(by.origin)),
    })
}

/// Returns the IMEX channels of a GPU container, and a warning about an ignored request.
///
/// # Errors
/// One is named by anything but its number, or `channel` and its number.
pub fn imex_channels(
    container: &Container,
    policy: &Policy,
) -> Result<(Vec<u32>, Option<String>), Error> {
    if policy.ignore_imex || Variables::read(&container.environment, policy).are_void() {
        return Ok((Vec::new(), None));
    }
    if policy.accept_mounts {
        let channels = mounts::imex_channels(&container.mounts);
        if !channels.is_empty() {
            return Ok((numbers(&channels)?, None));
        }
    }
    // As upstream: `all` requests no channel.
    let list = container.environment.get(IMEX_CHANNELS).and_then(list);
    let Some(Devices::Names(channels)) = list else {
        return Ok((Vec::new(), None));
    };
    if policy.accepts_environment_of(container) {
        Ok((numbers(&channels)?, None))
    } else {
        Ok((Vec::new(), Some(ignoring(&[IMEX_CHANNELS.into()]))))
    }
}

/// Returns the numbers of channels, each once.
fn numbers(names: &[String]) -> Result<Vec<u32>, Error> {
    let mut known = HashSet::new();
    let mut numbers = Vec::new();
    for name in names {
        let digits = name.strip_prefix("channel").unwrap_or(name);
        let found = parse_imex_channels(&[digits]);
        let found = found.map_err(|_| Error::ImexChannel(name.clone()))?;
        numbers.extend(found.into_iter().filter(|number| known.insert(*number)));
    }
    Ok(numbers)
}

/// Returns the warning about an ignored request.
pub(super) fn ignoring(variables: &[String]) -> String {
    format!(
        "Ignoring devices requested by environment variable(s) in unprivileged container: [{}]",
        variables.join(" ")
    )
}
