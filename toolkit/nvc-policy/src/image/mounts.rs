//! Parses requests by mounts: `/dev/null` mounted in a certain directory under the name of a device.
//!
//! A container cannot make these mounts itself, so an administrator who does not trust images can accept only this kind
//! of request.

use nvc_cdi::names;

use super::Error;
use super::distinct::distinct;

/// The directory of the mounts. As the value of `NVIDIA_VISIBLE_DEVICES` it refers to them.
pub(super) const DIRECTORY: &str = "/var/run/nvidia-container-devices";

/// A mount of the container, from config.json.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    pub source: String,
    pub destination: String,
}

/// Returns the GPUs that mounts name.
///
/// # Errors
/// The name of a CDI device has the wrong form, or a name is a list. Left out, it would leave the decision to the image's
/// environment.
pub(super) fn devices(mounts: &[Mount]) -> Result<Vec<String>, Error> {
    // A mount names one device. Not every program would split a list.
    if let Some(list) = names(mounts).find(|name| name.contains(',')) {
        return Err(Error::MountList(list));
    }
    let names: Vec<String> = names(mounts)
        .filter(|name| !name.starts_with("imex/"))
        .map(|name| match name.strip_prefix("cdi/") {
            Some(device) => qualified_name(device).ok_or(Error::MountName(name)),
            None => Ok(name),
        })
        .collect::<Result<_, _>>()?;
    Ok(distinct(names.iter().map(String::as_str)))
}

/// Returns the IMEX channels that mounts name.
pub(super) fn imex_channels(mounts: &[Mount]) -> Vec<String> {
    let names: Vec<String> = names(mounts).collect();
    distinct(names.iter().filter_map(|name| name.strip_prefix("imex/")))
}

/// Returns the number of names.
pub(super) fn number(mounts: &[Mount]) -> usize {
    names(mounts).count()
}

/// Returns the names of `/dev/null` mounts in the directory.
fn names(mounts: &[Mount]) -> impl Iterator<Item = String> {
    mounts
        .iter()
        .filter(|mount| nvc_oci::paths::clean(&mount.source) == "/dev/null")
        .filter_map(|mount| {
            let place = nvc_oci::paths::clean(&mount.destination);
            let name = place.strip_prefix(DIRECTORY)?.trim_matches('/');
            (!name.is_empty()).then(|| name.to_owned())
        })
}

/// Returns `vendor/class=device` for `vendor/class/device` or itself.
fn qualified_name(name: &str) -> Option<String> {
    let mut name = name.to_owned();
    if !name.contains('=') {
        let slash = name.rfind('/')?;
        name.replace_range(slash..=slash, "=");
    }
    names::is_qualified(&name).then_some(name)
}
