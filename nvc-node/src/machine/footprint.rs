//! Notices that driver, GPUs or MIG devices have changed, without NVML: by the names in /proc/driver/nvidia.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::Path;

/// `capabilities/gpu0/mig/gi1/ci0/access`.
const MAX_DEPTH: usize = 6;
/// The most names that are looked at; 16 GPUs with 7 MIG devices have about 500.
const MAX_NAMES: usize = 10_000;

/// Returns a number that is another one after each change.
pub(super) fn footprint(driver_root: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut left = MAX_NAMES;
    for root in [driver_root, Path::new("/")] {
        let directory = root.join("proc/driver/nvidia");
        fs::read(directory.join("version")).ok().hash(&mut hasher);
        for part in ["gpus", "capabilities"] {
            names(&directory.join(part), MAX_DEPTH, &mut left, &mut hasher);
        }
    }
    hasher.finish()
}

/// Returns true if the kernel module is loaded.
pub(super) fn is_loaded(driver_root: &Path) -> bool {
    let roots = [driver_root, Path::new("/")];
    roots
        .iter()
        .any(|root| root.join("proc/driver/nvidia/version").exists())
}

fn names(directory: &Path, depth: usize, left: &mut usize, hasher: &mut DefaultHasher) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<_> = entries
        .take(*left)
        .map(|entry| (entry.file_name(), entry.file_type()))
        .collect();
    *left -= entries.len();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, kind) in entries {
        name.hash(hasher);
        if depth > 0 && kind.is_ok_and(|kind| kind.is_dir()) {
            names(&directory.join(name), depth - 1, left, hasher);
        }
    }
}
