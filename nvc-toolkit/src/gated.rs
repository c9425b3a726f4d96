//! Finds devices other than GPUs that are added only on request: GPUDirect Storage, Mellanox OFED, GDRCopy, NVSwitch.

use std::path::Path;

use crate::cdi::{Edits, Mount};
use crate::image::features::Feature;
use crate::nodes::Nodes;

/// Options of read-only bind mounts.
pub const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// Returns the edits for a feature; empty if the machine lacks it.
pub fn edits(feature: Feature, nodes: &Nodes, driver_root: &Path) -> Edits {
    let mut found = match feature {
        Feature::Gds => nodes.matching("/dev", |name| name.starts_with("nvidia-fs")),
        Feature::Mofed => nodes.matching("/dev/infiniband", |name| {
            name == "rdma_cm" || name.starts_with("uverbs")
        }),
        Feature::Gdrcopy => nodes.matching("/dev", |name| name == "gdrdrv"),
        Feature::Nvswitch => nodes.matching("/dev", |name| name.starts_with("nvidia-nvswitch")),
    };
    let mut edits = Edits::default();
    // Ignore nodes that vanish concurrently.
    found.retain(|path| nodes.add(path, &mut edits).is_ok());
    if feature == Feature::Gds && !found.is_empty() {
        for (path, is_directory) in [("/run/udev", true), ("/etc/cufile.json", false)] {
            let on_host = driver_root.join(path.trim_start_matches('/'));
            if std::fs::metadata(&on_host).is_ok_and(|facts| facts.is_dir() == is_directory) {
                edits.mounts.push(Mount {
                    host_path: on_host.to_string_lossy().into_owned(),
                    container_path: path.into(),
                    options: READ_ONLY.map(str::to_owned).to_vec(),
                    kind: String::new(),
                });
            }
        }
    }
    edits
}
