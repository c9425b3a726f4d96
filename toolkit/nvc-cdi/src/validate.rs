//! Validates a specification by the reference library's rules: a file that breaks one is rejected as a whole.

use std::collections::HashSet;

use indexmap::IndexMap;
use libnvc::{Error, Result};

use super::model::{DeviceNode, Edits, Hook, IntelRdt, NetDevice, Spec};
use super::{malformed, names, version};

/// The stages of hooks.
pub const STAGES: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

/// Limit of the total size of an object's annotations.
const MAX_ANNOTATIONS_SIZE: usize = 256 << 10;

/// Validates a specification; the error is the first broken rule.
pub fn spec(spec: &Spec) -> Result<()> {
    check_version(spec)?;
    let (vendor, class) = spec.vendor_and_class();
    let kind = |text| malformed(format!("kind \"{}\": {text}", spec.kind));
    names::vendor(vendor).map_err(kind)?;
    names::class(class).map_err(kind)?;
    annotations(&spec.annotations)?;
    edits(&spec.container_edits).map_err(|error| error.context("containerEdits"))?;
    if spec.devices.is_empty() {
        return Err(malformed("no devices"));
    }
    let mut seen = HashSet::new();
    for device in &spec.devices {
        names::device(&device.name).map_err(malformed)?;
        let of_device = |error: Error| error.context(format!("device \"{}\"", device.name));
        annotations(&device.annotations).map_err(of_device)?;
        if device.container_edits.is_empty() {
            return Err(of_device(malformed("no edits")));
        }
        edits(&device.container_edits).map_err(of_device)?;
        if !seen.insert(device.name.as_str()) {
            return Err(of_device(malformed("it is defined twice")));
        }
    }
    Ok(())
}

fn check_version(spec: &Spec) -> Result<()> {
    let rank = version::rank(&spec.cdi_version)
        .ok_or_else(|| malformed(format!("unknown cdiVersion \"{}\"", spec.cdi_version)))?;
    let (least, feature) = version::minimum(spec);
    if version::rank(least).is_some_and(|least| rank < least) {
        let has = &spec.cdi_version;
        return Err(malformed(format!(
            "cdiVersion {has} is too low: {feature} needs {least}"
        )));
    }
    Ok(())
}

/// Validates the edits of a device or of the whole specification.
pub fn edits(edits: &Edits) -> Result<()> {
    environment(&edits.env)?;
    edits.device_nodes.iter().try_for_each(device_node)?;
    edits.hooks.iter().try_for_each(hook)?;
    for mount in &edits.mounts {
        if mount.host_path.is_empty() || mount.container_path.is_empty() {
            return Err(malformed("a mount without hostPath or containerPath"));
        }
    }
    edits.intel_rdt.as_ref().map_or(Ok(()), intel_rdt)?;
    net_devices(&edits.net_devices)
}

fn environment(env: &[String]) -> Result<()> {
    match env
        .iter()
        .find(|entry| entry.find('=').is_none_or(|at| at == 0))
    {
        Some(entry) => Err(malformed(format!(
            "environment variable \"{entry}\" is not NAME=VALUE"
        ))),
        None => Ok(()),
    }
}

fn device_node(node: &DeviceNode) -> Result<()> {
    let path = &node.path;
    if path.is_empty() {
        return Err(malformed("a device node without path"));
    }
    if !matches!(node.kind.as_str(), "" | "b" | "c" | "u" | "p") {
        return Err(malformed(format!(
            "device node {path}: unknown type \"{}\"",
            node.kind
        )));
    }
    if node.major < 0 || node.minor < 0 {
        let (major, minor) = (node.major, node.minor);
        return Err(malformed(format!(
            "device node {path}: number {major}:{minor}"
        )));
    }
    let permissions = &node.permissions;
    if permissions != "none" && permissions.chars().any(|c| !"rwm".contains(c)) {
        return Err(malformed(format!(
            "device node {path}: permissions \"{permissions}\""
        )));
    }
    Ok(())
}

fn hook(hook: &Hook) -> Result<()> {
    let name = &hook.hook_name;
    if !STAGES.contains(&name.as_str()) {
        return Err(malformed(format!("unknown hookName \"{name}\"")));
    }
    if hook.path.is_empty() {
        return Err(malformed(format!("a {name} hook without path")));
    }
    environment(&hook.env).map_err(|error| error.context(format!("a {name} hook")))
}

fn intel_rdt(rdt: &IntelRdt) -> Result<()> {
    let id = rdt.clos_id.as_str();
    let bad = id.len() >= 4096 || matches!(id, "." | "..") || id.contains(['/', '\n']);
    if bad && id != "/" {
        return Err(malformed(format!("intelRdt: invalid closID \"{id}\"")));
    }
    Ok(())
}

fn net_devices(devices: &[NetDevice]) -> Result<()> {
    let (mut on_host, mut inside) = (HashSet::new(), HashSet::new());
    for device in devices {
        let (host, name) = (&device.host_interface_name, &device.name);
        if host.is_empty() || name.is_empty() {
            return Err(malformed(
                "a network device without hostInterfaceName or name",
            ));
        }
        if !on_host.insert(host) || !inside.insert(name) {
            return Err(malformed(format!(
                "network device {host} ({name}): a name is used twice"
            )));
        }
    }
    Ok(())
}

/// Validates annotations like Kubernetes: keys are `[PREFIX/]NAME`, and their total size is limited.
fn annotations(pairs: &IndexMap<String, String>) -> Result<()> {
    let mut size = 0;
    for (key, value) in pairs {
        size += key.len() + value.len();
        annotation_key(key).map_err(|error| error.context(format!("annotation \"{key}\"")))?;
    }
    if size > MAX_ANNOTATIONS_SIZE {
        return Err(malformed(format!("annotations of {size} bytes")));
    }
    Ok(())
}

fn annotation_key(key: &str) -> Result<()> {
    let lower = key.to_ascii_lowercase();
    let (prefix, name) = match lower.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, lower.as_str()),
    };
    let alphanumeric_ends = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let all = |part: &str, more: &str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if let Some(prefix) = prefix {
        let labels = |part: &str| {
            part.split('.')
                .all(|label| alphanumeric_ends(label) && all(label, "-"))
        };
        if prefix.is_empty() || prefix.len() > 253 || !labels(prefix) {
            return Err(malformed("the part before the slash is not a domain name"));
        }
    }
    if name.is_empty() || name.len() > 63 {
        return Err(malformed("the name has no characters, or more than 63"));
    }
    if !alphanumeric_ends(name) || !all(name, "-_.") {
        return Err(malformed("the name has characters that are not allowed"));
    }
    Ok(())
}
