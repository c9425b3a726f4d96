//! Reads requests that are made by mounts: `/dev/null` at a place below a directory that names a device.
//!
//! A container cannot make these itself, so an administrator who does not trust images can have requests in this form only.

use super::devices::distinct;
use super::qualified;

const DIRECTORY: &str = "/var/run/nvidia-container-devices";

/// A mount of the container, as config.json has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted.
    pub source: String,
    /// Where it is mounted.
    pub destination: String,
}

/// The GPUs that mounts name.
pub(super) fn devices(mounts: &[Mount]) -> Vec<String> {
    let names: Vec<String> = names(mounts)
        .filter(|name| !name.starts_with("imex/"))
        .filter_map(|name| match name.strip_prefix("cdi/") {
            Some(name) => qualified_name(name),
            None => Some(name),
        })
        .collect();
    distinct(names.iter().map(String::as_str))
}

/// The IMEX channels that mounts name.
pub(super) fn imex_channels(mounts: &[Mount]) -> Vec<String> {
    let names: Vec<String> = names(mounts).collect();
    distinct(names.iter().filter_map(|name| name.strip_prefix("imex/")))
}

/// What mounts of `/dev/null` say behind the directory.
fn names(mounts: &[Mount]) -> impl Iterator<Item = String> {
    mounts
        .iter()
        .filter(|mount| crate::oci::paths::clean(&mount.source) == "/dev/null")
        .filter_map(|mount| {
            let place = crate::oci::paths::clean(&mount.destination);
            let name = place.strip_prefix(DIRECTORY)?.trim_matches('/');
            (!name.is_empty()).then(|| name.to_owned())
        })
}

/// `vendor/class=device` of `vendor/class/device` or of itself.
fn qualified_name(name: &str) -> Option<String> {
    let mut name = name.to_owned();
    if !name.contains('=') {
        let slash = name.rfind('/')?;
        name.replace_range(slash..=slash, "=");
    }
    qualified::is_qualified(&name).then_some(name)
}
