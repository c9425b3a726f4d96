//! Compares two specifications, and finds entries of a specification that the host no longer has.
//!
//! The order of entries is ignored, because it does not matter to engines, except for hooks and variables, which are
//! compared with their position among entries of the same kind.

use std::collections::BTreeSet;
use std::path::Path;

use libnvc::host::CharDrivers;
use nvc_hostfile::HandedPaths;

use super::model::{CHARACTER, DeviceNode, Edits, Hook, Spec};
use crate::{names, nodes};

/// Returns the differences, one per line; empty if there are none.
pub fn differences(old: &Spec, new: &Spec) -> Vec<String> {
    let mut lines = Vec::new();
    if old.kind != new.kind {
        lines.push(format!("kind: {} is now {}", old.kind, new.kind));
    }
    for device in &old.devices {
        match new.device(&device.name) {
            None => lines.push(format!("device {}: gone", device.name)),
            Some(other) => {
                let place = format!("device {}", device.name);
                edits(
                    &place,
                    &device.container_edits,
                    &other.container_edits,
                    &mut lines,
                );
            }
        }
    }
    for device in new
        .devices
        .iter()
        .filter(|device| old.device(&device.name).is_none())
    {
        lines.push(format!("device {}: new", device.name));
    }
    edits(
        "all devices",
        &old.container_edits,
        &new.container_edits,
        &mut lines,
    );
    lines
}

fn edits(place: &str, old: &Edits, new: &Edits, lines: &mut Vec<String>) {
    let (old, new) = (facts(old), facts(new));
    for gone in old.difference(&new) {
        lines.push(format!("{place}: no longer {gone}"));
    }
    for added in new.difference(&old) {
        lines.push(format!("{place}: now {added}"));
    }
}

/// Returns edits as a set of texts.
fn facts(edits: &Edits) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for (n, variable) in edits.env.iter().enumerate() {
        let rank = edits.env[..n]
            .iter()
            .filter(|other| name(other) == name(variable))
            .count();
        facts.insert(format!("variable {variable}{}", times(rank)));
    }
    for node in &edits.device_nodes {
        facts.insert(format!("device node {}", node_text(node)));
    }
    for (n, hook) in edits.hooks.iter().enumerate() {
        let rank = edits.hooks[..n]
            .iter()
            .filter(|other| *other == hook)
            .count();
        let line = hook.args.join(" ");
        facts.insert(format!(
            "{} hook {} as {line}{}",
            hook.hook_name,
            hook.path,
            times(rank)
        ));
    }
    for mount in &edits.mounts {
        let options = mount.options.join(",");
        facts.insert(format!(
            "mount of {} at {} ({options})",
            mount.host_path, mount.container_path
        ));
    }
    for gid in &edits.additional_gids {
        facts.insert(format!("group {gid}"));
    }
    for device in &edits.net_devices {
        facts.insert(format!(
            "network device {} as {}",
            device.host_interface_name, device.name
        ));
    }
    if let Some(rdt) = &edits.intel_rdt {
        facts.insert(format!(
            "intelRdt {}",
            serde_json::to_string(rdt).unwrap_or_default()
        ));
    }
    facts
}

fn name(variable: &str) -> &str {
    variable.split_once('=').map_or(variable, |(name, _)| name)
}

fn times(rank: usize) -> String {
    if rank == 0 {
        String::new()
    } else {
        format!(" (number {})", rank + 1)
    }
}

fn node_text(node: &DeviceNode) -> String {
    let mut text = node.path.clone();
    if !node.host_path.is_empty() {
        text += &format!(" of {}", node.host_path);
    }
    // Files from before types were recorded are as good.
    if !node.kind.is_empty() && node.kind != CHARACTER {
        text += &format!(" of type {}", node.kind);
    }
    if node.major != 0 {
        text += &format!(" with number {}:{}", node.major, node.minor);
    }
    if let Some(mode) = node.file_mode {
        text += &format!(", mode {mode:o}");
    }
    if let Some(gid) = node.gid {
        text += &format!(", group {gid}");
    }
    text + &format!(", access {}", node.permissions)
}

/// Returns the entries that are missing on this host, or are other devices than specified.
pub fn missing(spec: &Spec) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for edits in spec.all_edits() {
        lines.extend(gone(edits));
        for node in &edits.device_nodes {
            if let Err(error) = nodes::look_up(Path::new(node.on_host())) {
                lines.insert(error.message());
            }
        }
    }
    lines.extend(renumbered(spec));
    lines.into_iter().collect()
}

/// Returns the files of edits that are gone, without which no container starts: sources of mounts, and hook programs.
pub(crate) fn gone(edits: &Edits) -> Vec<String> {
    let is_gone = |path: &str| !Path::new(path).exists();
    let mounts = edits.mounts.iter().filter(|mount| mount.is_bind());
    let mounts = mounts.filter(|mount| is_gone(&mount.host_path));
    let hooks = edits
        .hooks
        .iter()
        .filter(|hook| hook.hook_name != "startContainer");
    let hooks = hooks.filter(|hook| is_gone(&hook.path));
    let mounts = mounts.map(|mount| format!("{} is missing", mount.host_path));
    let hooks = hooks.map(|hook| format!("hook program {} is missing", hook.path));
    mounts.chain(hooks).collect()
}

/// Returns the mounts of paths that a user other than root and the caller could exchange, with the reasons: of NVIDIA's
/// devices.
pub fn exposed(spec: &Spec) -> Vec<String> {
    if !names::is_nvidias(spec.vendor_and_class().0) {
        return Vec::new();
    }
    let mut paths = HandedPaths::default();
    let mounts = spec.all_edits().flat_map(|edits| &edits.mounts);
    let lines = mounts.filter_map(|mount| {
        let why = mount.exposed(&mut paths)?;
        Some(format!("mount of {}: {why}", mount.host_path))
    });
    lines.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the nodes that are other devices than recorded: engines give containers the recorded ones.
pub fn renumbered(spec: &Spec) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for node in nodes_of(spec).filter(|node| node.major != 0) {
        let path = node.on_host();
        let (major, minor) = (node.major.unsigned_abs(), node.minor.unsigned_abs());
        if let Ok(found) = nodes::look_up(Path::new(path))
            && (major, minor) != (found.major, found.minor)
        {
            let now = format!("{}:{}", found.major, found.minor);
            let line = format!("{path} is recorded as {major}:{minor} and is {now}");
            lines.insert(line);
        }
    }
    lines.into_iter().collect()
}

/// Returns the nodes on this host that are not the devices that their names say: left over from another boot, or replaced.
/// Containers would get those.
pub fn outdated(spec: &Spec, drivers: &CharDrivers) -> Vec<String> {
    let found = nodes_of(spec).filter_map(|node| {
        let found = nodes::look_up(Path::new(node.on_host())).ok()?;
        let error = nodes::check(node, found, drivers).err()?;
        Some(error.message())
    });
    let lines: BTreeSet<String> = found.collect();
    lines.into_iter().collect()
}

/// Returns the hooks that engines may start with a container's environment.
pub fn without_environment(spec: &Spec) -> Vec<String> {
    let hooks = spec
        .all_edits()
        .flat_map(|edits| &edits.hooks)
        .filter(|hook| hook.lacks_environment());
    let line = |hook: &Hook| {
        let (stage, program) = (&hook.hook_name, &hook.path);
        format!(
            "the {stage} hook {program} has no env: runc 1.1 starts it as root with the environment of the container, and \
             a dynamic program then loads the image's libraries"
        )
    };
    let lines: BTreeSet<String> = hooks.map(line).collect();
    lines.into_iter().collect()
}

fn nodes_of(spec: &Spec) -> impl Iterator<Item = &DeviceNode> {
    spec.all_edits().flat_map(|edits| &edits.device_nodes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        crate::parse(text.as_bytes()).unwrap()
    }

    const OLD: &str = r#"{"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}},
        {"name": "1", "containerEdits": {"env": ["A=1", "B=2"]}}],
        "containerEdits": {"mounts": [{"hostPath": "/no/lib.so.1", "containerPath": "/lib.so.1"}]}}"#;

    #[test]
    fn differences_are_named() {
        let old = spec(OLD);
        assert!(differences(&old, &old).is_empty());
        let mut new = spec(&OLD.replace("lib.so.1", "lib.so.2"));
        new.devices.remove(0);
        new.devices[0].container_edits.env.reverse();
        let lines = differences(&old, &new);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0], "device 0: gone");
        assert!(
            lines[1].contains("no longer mount of /no/lib.so.1"),
            "{lines:?}"
        );
    }

    #[test]
    fn missing_entries_are_named() {
        assert_eq!(missing(&spec(OLD)), ["/no/lib.so.1 is missing"]);
        let wrong = OLD.replace("\"/dev/null\"", "\"/dev/null\", \"major\": 7, \"minor\": 3");
        assert!(missing(&spec(&wrong))[0].contains("is recorded as 7:3 and is 1:3"));
        assert_eq!(
            renumbered(&spec(&wrong)),
            ["/dev/null is recorded as 7:3 and is 1:3"]
        );
        let right = OLD.replace("\"/dev/null\"", "\"/dev/null\", \"major\": 1, \"minor\": 3");
        assert!(renumbered(&spec(&right)).is_empty());
    }

    #[test]
    fn nodes_of_another_boot_are_named() {
        const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia-frontend\n508 nvidia-uvm\n510 nvidia-caps\n\n\
             Block devices:\n  1 nvidia-uvm\n";
        // The host's node of each path is /dev/null, 1:3.
        let said = |path: &str, devices: &str| {
            let node = format!(r#""path": "{path}", "hostPath": "/dev/null""#);
            let spec = spec(&OLD.replace(r#""path": "/dev/null""#, &node));
            outdated(&spec, &CharDrivers::of(devices, ""))
        };
        for (path, why) in [
            ("/dev/nvidia-uvm", "the driver's major number is 508"),
            ("/dev/nvidia12", "its major number should be 195"),
            ("/dev/nvidiactl", "its major number should be 195"),
            (
                "/dev/nvidia-caps/nvidia-cap7",
                "the driver's major number is 510",
            ),
            (
                "/dev/nvidia-fs0",
                "/proc/devices has no nvidia-fs: is its module loaded?",
            ),
        ] {
            assert_eq!(said(path, DEVICES), [format!("{path} is 1:3, and {why}")]);
        }
        let of_null = DEVICES.replace("510", "1");
        assert!(said("/dev/nvidia-caps/nvidia-cap3", &of_null).is_empty());
        assert!(said("/dev/of-another-driver", DEVICES).is_empty());
    }

    #[test]
    fn a_recorded_type_is_no_difference() {
        let old = spec(OLD);
        let new = spec(&OLD.replace("\"/dev/null\"", "\"/dev/null\", \"type\": \"c\""));
        assert!(differences(&old, &new).is_empty());
        let block = spec(&OLD.replace("\"/dev/null\"", "\"/dev/null\", \"type\": \"b\""));
        assert_eq!(differences(&block, &new).len(), 2);
    }
}
