//! Merges edits: removes duplicates, sorts, and adds a device `all` with all devices.

use std::collections::HashSet;

use crate::draft::{Draft, DraftDevice};

/// Removes duplicates, sorts, and adds the device `all`.
pub(super) fn simplify(devices: &mut Vec<DraftDevice>, common: &mut Draft, with_all: bool) {
    parts(devices, common);
    if with_all && devices.iter().all(|device| device.name != "all") {
        let mut all = Draft::default();
        for device in devices.iter() {
            all.append(&device.draft);
        }
        all.join_links();
        simplify_draft(&mut all);
        devices.push(DraftDevice::new("all", all));
    }
    devices.sort_by(|one, other| one.name.cmp(&other.name));
}

fn simplify_draft(draft: &mut Draft) {
    once(&mut draft.hooks);
    let edits = &mut draft.edits;
    once(&mut edits.env);
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
pub(super) fn parts(devices: &mut [DraftDevice], common: &mut Draft) {
    simplify_draft(common);
    for device in devices {
        simplify_draft(&mut device.draft);
        without(&mut device.draft, common);
    }
}

/// Removes edits that are common to all containers, unless nothing would be left.
fn without(draft: &mut Draft, common: &Draft) {
    let mut less = draft.clone();
    less.hooks.retain(|item| !common.hooks.contains(item));
    let (edits, common) = (&mut less.edits, &common.edits);
    edits.env.retain(|item| !common.env.contains(item));
    edits
        .device_nodes
        .retain(|item| !common.device_nodes.contains(item));
    edits.mounts.retain(|item| !common.mounts.contains(item));
    if !less.is_empty() {
        *draft = less;
    }
}

/// Removes the groups of nodes.
pub(super) fn without_groups(draft: &mut Draft) {
    draft.edits.additional_gids.clear();
    let nodes = draft.edits.device_nodes.iter_mut();
    nodes.for_each(|node| node.gid = None);
}
