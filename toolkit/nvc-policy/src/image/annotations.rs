//! Reads the CDI devices that annotations name.
//!
//! Some engines copy the annotations of an image into its containers, and no annotation says which engine it was. So
//! annotations have no more authority than the environment, unless the configuration says otherwise.

use nvc_cdi::names;

use super::distinct::distinct;
use super::{Container, Devices, Error, Kinds, Origin, Policy, Source};
use crate::config::keys::ACCEPT_ANNOTATIONS;

/// Named devices.
#[derive(Clone, Debug)]
pub(super) struct AnnotatedDevices {
    /// The annotations, sorted.
    pub(super) keys: Vec<String>,
    /// The devices, in the order of the annotations.
    pub(super) names: Vec<String>,
}

impl AnnotatedDevices {
    pub(super) fn origin(&self) -> Origin {
        Origin::Annotations(self.keys.clone())
    }

    /// Checks that devices for managers are requested by one. Those of other vendors may be requested.
    pub(super) fn check(&self, kinds: &Kinds<'_>, privileged: bool) -> Result<(), Error> {
        let mut names = self.names.iter();
        match names.find(|name| !kinds.may_manage(name, privileged)) {
            Some(name) => Err(Error::kind(name, self.origin())),
            None => Ok(()),
        }
    }

    pub(super) fn source(self) -> Source {
        Source {
            origin: self.origin(),
            devices: Some(Devices::Names(self.names)),
        }
    }
}

/// Returns the devices in annotations with an accepted prefix; None if there are none.
pub(super) fn read(container: &Container, policy: &Policy) -> Option<AnnotatedDevices> {
    let mut found: Vec<_> = container
        .annotations
        .iter()
        .filter(|(key, _)| counts(key, policy))
        .collect();
    found.sort();
    let names = distinct(
        found
            .iter()
            .flat_map(|(_, value)| value.split(',').map(str::trim)),
    );
    let keys = found.iter().map(|(key, _)| key.clone()).collect();
    (!names.is_empty()).then_some(AnnotatedDevices { keys, names })
}

/// Returns true if an annotation names devices.
pub(super) fn counts(key: &str, policy: &Policy) -> bool {
    let mut prefixes = policy.annotation_prefixes.iter();
    prefixes.any(|prefix| key.starts_with(prefix.as_str()))
}

/// Returns true if annotations name CDI devices, so that mode `auto` looks at them.
///
/// # Errors
/// Some of their names are no CDI devices. They are not ignored, or one odd annotation would hide the others.
pub fn name_cdi_devices(container: &Container, policy: &Policy) -> Result<bool, Error> {
    let Some(annotated) = read(container, policy) else {
        return Ok(false);
    };
    let (known, odd): (Vec<_>, Vec<_>) = annotated
        .names
        .iter()
        .partition(|name| names::is_qualified(name));
    let count = policy.accept_annotations || policy.accepts_environment_of(container);
    if known.is_empty() || odd.is_empty() || !count {
        return Ok(!known.is_empty());
    }
    let names = |value: &str| value.split(',').any(|name| name.trim() == odd[0]);
    let mut all = container.annotations.iter();
    let odd = all.find(|(key, value)| counts(key, policy) && names(value));
    odd.map_or(Ok(true), |(key, value)| {
        let (key, value) = (key.clone(), value.clone());
        Err(Error::NoCdiName { key, value })
    })
}

/// Returns the warning about annotations that name no CDI device; None if there are none with an accepted prefix.
pub fn ignored(container: &Container, policy: &Policy) -> Option<String> {
    let annotated = read(container, policy)?;
    let keys = annotated.keys.join(" ");
    Some(format!(
        "Ignoring annotation(s) that name no CDI device: [{keys}]"
    ))
}

/// Returns the warning about refused annotations.
pub(super) fn refused(annotated: &AnnotatedDevices) -> String {
    format!(
        "Ignoring devices ({ACCEPT_ANNOTATIONS} = true in config.toml accepts them) requested by annotation(s) in unprivileged container: [{}]",
        annotated.keys.join(" ")
    )
}
