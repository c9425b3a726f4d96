//! Simplifies the edits of a specification: removes duplicates, sorts.

use std::collections::HashSet;

use nvc_cdi::{Device, Edits};

/// Returns edits without duplicates, sorted.
pub(super) fn simplified(mut edits: Edits) -> Edits {
    once(&mut edits.hooks);
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
    edits
}

fn once<T: Clone + Eq + std::hash::Hash>(items: &mut Vec<T>) {
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(item.clone()));
}

/// Returns edits without those that are common to all containers, unless nothing would be left.
pub(super) fn without(edits: Edits, common: &Edits) -> Edits {
    let mut less = edits.clone();
    less.hooks.retain(|item| !common.hooks.contains(item));
    less.env.retain(|item| !common.env.contains(item));
    less.device_nodes
        .retain(|item| !common.device_nodes.contains(item));
    less.mounts.retain(|item| !common.mounts.contains(item));
    if less.is_empty() { edits } else { less }
}

pub(super) fn device(name: String, container_edits: Edits) -> Device {
    Device {
        name,
        container_edits,
        ..Device::default()
    }
}
