//! Determines the lowest version of the format that supports a specification's features.
//!
//! Engines reject files of unknown versions, so a file should not claim a newer version than it needs.

use super::model::{Edits, Spec};

/// The existing versions, ascending.
pub const KNOWN: [&str; 10] = [
    "0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
];

/// The lowest version that is written or accepted.
const EARLIEST: &str = "0.3.0";

/// Returns the rank of a version, if it is known; a leading `v` is ignored.
pub fn rank(version: &str) -> Option<usize> {
    let version = version.strip_prefix('v').unwrap_or(version);
    KNOWN.iter().position(|known| *known == version)
}

/// Returns the lowest version that supports a specification, and the feature that requires it.
pub fn minimum(spec: &Spec) -> (&'static str, &'static str) {
    let uses = |test: &dyn Fn(&Edits) -> bool| spec.all_edits().any(test);
    let (_, class) = spec.vendor_and_class();
    let annotated = !spec.annotations.is_empty()
        || spec
            .devices
            .iter()
            .any(|device| !device.annotations.is_empty());
    let rdt = |edits: &Edits| edits.intel_rdt.clone().unwrap_or_default();
    if uses(&|edits| !edits.net_devices.is_empty()) {
        ("1.1.0", "netDevices")
    } else if uses(&|edits| !rdt(edits).schemata.is_empty() || rdt(edits).enable_monitoring) {
        ("1.1.0", "intelRdt.schemata or enableMonitoring")
    } else if uses(&|edits| !edits.additional_gids.is_empty()) {
        ("0.7.0", "additionalGids")
    } else if uses(&|edits| edits.intel_rdt.is_some()) {
        ("0.7.0", "intelRdt")
    } else if annotated {
        ("0.6.0", "annotations")
    } else if class.contains('.') {
        ("0.6.0", "a class with a dot")
    } else if spec
        .devices
        .iter()
        .any(|device| !device.name.starts_with(|c: char| c.is_ascii_alphabetic()))
    {
        ("0.5.0", "a device name that begins with a digit")
    } else if uses(&|edits| {
        edits
            .device_nodes
            .iter()
            .any(|node| !node.host_path.is_empty())
    }) {
        ("0.5.0", "hostPath of a device node")
    } else if uses(&|edits| edits.mounts.iter().any(|mount| !mount.kind.is_empty())) {
        ("0.4.0", "the type of a mount")
    } else {
        (EARLIEST, "the format")
    }
}
