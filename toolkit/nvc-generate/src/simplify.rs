//! Merges edits: removes duplicates, sorts, and adds a device `all` with all devices.

use std::collections::HashSet;

use nvc_cdi::{Device, Edits, Spec};

/// Removes duplicates, sorts, and adds the device `all`.
pub(super) fn simplify(spec: &mut Spec, with_all: bool) {
    parts(&mut spec.devices, &mut spec.container_edits);
    if with_all && spec.device("all").is_none() {
        let mut edits = Edits::default();
        for device in &spec.devices {
            edits.append(&device.container_edits);
        }
        simplify_edits(&mut edits);
        spec.devices.push(Device {
            name: "all".into(),
            container_edits: edits,
            ..Device::default()
        });
    }
    spec.devices.sort_by(|one, other| one.name.cmp(&other.name));
}

fn simplify_edits(edits: &mut Edits) {
    once(&mut edits.env);
    once(&mut edits.hooks);
    once(&mut edits.mounts);
    let depth = |path: &str| path.matches('/').count();
    let mut seen = HashSet::new();
    edits
        .device_nodes
        .retain(|node| seen.insert(node.path.clone()));
    edits
        .device_nodes
        .sort_by_cached_key(|node| (depth(&node.path), node.path.clone()));
    edits
        .mounts
        .sort_by_cached_key(|mount| (depth(&mount.container_path), mount.container_path.clone()));
    edits.additional_gids.sort_unstable();
    edits.additional_gids.dedup();
}

fn once<T: Clone + Eq + std::hash::Hash>(items: &mut Vec<T>) {
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(item.clone()));
}

/// Removes duplicates and sorts, each device's edits without the common ones.
pub(super) fn parts(devices: &mut [Device], common: &mut Edits) {
    simplify_edits(common);
    for device in devices {
        simplify_edits(&mut device.container_edits);
        without(&mut device.container_edits, common);
    }
}

/// Removes edits that are common to all containers, unless nothing would be left.
fn without(edits: &mut Edits, common: &Edits) {
    let mut less = edits.clone();
    less.env.retain(|item| !common.env.contains(item));
    less.device_nodes
        .retain(|item| !common.device_nodes.contains(item));
    less.hooks.retain(|item| !common.hooks.contains(item));
    less.mounts.retain(|item| !common.mounts.contains(item));
    if !less.is_empty() {
        *edits = less;
    }
}

/// Removes the groups of nodes.
pub(super) fn without_groups(spec: &mut Spec) {
    let devices = spec
        .devices
        .iter_mut()
        .map(|device| &mut device.container_edits);
    for edits in devices.chain([&mut spec.container_edits]) {
        edits.additional_gids.clear();
        edits
            .device_nodes
            .iter_mut()
            .for_each(|node| node.gid = None);
    }
}
