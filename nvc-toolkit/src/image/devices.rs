//! Parses the requested GPUs and IMEX channels.

use std::collections::HashSet;

use super::{Container, Environment, Policy, legacy, mounts};

/// The variable that lists GPUs.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
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

/// Origin of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// These annotations.
    Annotations(Vec<String>),
    /// Mounts whose destinations name devices.
    Mounts,
    /// These variables.
    Environment(Vec<String>),
    /// An image from before the variable existed.
    LegacyImage,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Annotations(keys) => write!(out, "annotation {}", keys.join(", ")),
            Self::Mounts => out.write_str("mounts below /var/run/nvidia-container-devices"),
            Self::Environment(names) => out.write_str(&names.join(", ")),
            Self::LegacyImage => out.write_str("CUDA_VERSION of an old image"),
        }
    }
}

/// Requested GPUs that the container may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The GPUs.
    pub devices: Devices,
    /// Origin of the request.
    pub origin: Origin,
}

/// Returns the granted GPUs, and a warning about an ignored request.
pub fn wish(container: &Container, policy: &Policy) -> (Option<Wish>, Vec<String>) {
    let mut warnings = Vec::new();
    match from_annotations(container, policy) {
        Some(Wish {
            origin: Origin::Annotations(keys),
            ..
        }) if container.has_annotations_of_the_image()
            && !policy.accepts_environment_of(container) =>
        {
            warnings.push(format!(
                "Ignoring devices requested by annotation(s), which can be the image's, in unprivileged container: [{}]",
                keys.join(" ")
            ));
        }
        Some(wish) => return (Some(wish), warnings),
        None => {}
    }
    if policy.accept_mounts {
        let names = mounts::devices(&container.mounts);
        if !names.is_empty() {
            let wish = Wish {
                devices: Devices::Names(names),
                origin: Origin::Mounts,
            };
            return (Some(wish), warnings);
        }
    }
    match from_environment(&container.environment, policy) {
        Some(wish) if policy.accepts_environment_of(container) => (Some(wish), warnings),
        Some(wish) => {
            let names = match wish.origin {
                Origin::Environment(names) => names,
                _ => vec![VISIBLE_DEVICES.into()],
            };
            warnings.push(ignoring(&names));
            (None, warnings)
        }
        None => (None, warnings),
    }
}

/// Returns the IMEX channels of a GPU container, and a warning about an ignored request.
pub fn imex_channels(container: &Container, policy: &Policy) -> (Vec<String>, Option<String>) {
    if policy.ignore_imex {
        return (Vec::new(), None);
    }
    if policy.accept_mounts {
        let channels = mounts::imex_channels(&container.mounts);
        if !channels.is_empty() {
            return (channels, None);
        }
    }
    // All channels would give access to every other tenant's memory: only the administrator's mounts can request them.
    let list = container.environment.get(IMEX_CHANNELS).and_then(list);
    let Some(Devices::Names(channels)) = list else {
        return (Vec::new(), None);
    };
    if policy.accepts_environment_of(container) {
        (channels, None)
    } else {
        (Vec::new(), Some(ignoring(&[IMEX_CHANNELS.into()])))
    }
}

/// Returns the warning about an ignored request.
pub(super) fn ignoring(variables: &[String]) -> String {
    format!(
        "Ignoring devices requested by environment variable(s) in unprivileged container: [{}]",
        variables.join(" ")
    )
}

fn from_annotations(container: &Container, policy: &Policy) -> Option<Wish> {
    let mut found: Vec<_> = container
        .annotations
        .iter()
        .filter(|(key, _)| counts(key, policy))
        .collect();
    found.sort();
    let names = distinct(found.iter().flat_map(|(_, value)| value.split(',')));
    let keys = found.iter().map(|(key, _)| key.clone()).collect();
    (!names.is_empty()).then_some(Wish {
        devices: Devices::Names(names),
        origin: Origin::Annotations(keys),
    })
}

/// Returns true if an annotation names devices.
pub(super) fn counts(key: &str, policy: &Policy) -> bool {
    let mut prefixes = policy.annotation_prefixes.iter();
    prefixes.any(|prefix| key.starts_with(prefix.as_str()))
}

fn from_environment(environment: &Environment, policy: &Policy) -> Option<Wish> {
    let mut variables: Vec<&str> = policy.swarm_resources.iter().map(String::as_str).collect();
    variables.retain(|name| environment.get(name).is_some());
    if variables.is_empty() && environment.get(VISIBLE_DEVICES).is_some() {
        variables.push(VISIBLE_DEVICES);
    }
    if variables.is_empty() {
        return legacy::is_legacy(environment).then_some(Wish {
            devices: Devices::All,
            origin: Origin::LegacyImage,
        });
    }
    let values: Vec<&str> = variables
        .iter()
        .filter_map(|name| environment.get(name))
        .collect();
    Some(Wish {
        devices: list(&values.join(","))?,
        origin: Origin::Environment(variables.into_iter().map(str::to_owned).collect()),
    })
}

/// Parses a variable's list; None if it requests nothing.
pub(super) fn list(text: &str) -> Option<Devices> {
    let names = distinct(text.split(','));
    if names.is_empty() || names.iter().any(|name| name == "void") {
        return None;
    }
    let word = names.iter().find(|name| *name == "all" || *name == "none");
    Some(match word.map(String::as_str) {
        Some("all") => Devices::All,
        Some(_) => Devices::None,
        None => Devices::Names(names),
    })
}

/// Trims names, and drops empty ones and duplicates.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen = HashSet::new();
    names
        .map(str::trim)
        .filter(|name| !name.is_empty() && seen.insert(*name))
        .map(str::to_owned)
        .collect()
}
