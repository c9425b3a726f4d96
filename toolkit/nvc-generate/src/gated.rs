//! Finds devices other than GPUs that are added only on request: GPUDirect Storage, Mellanox OFED, GDRCopy, NVSwitch.

use std::path::Path;

use nvc_cdi::{Edits, Mount};
use nvc_policy::image::features::Feature;

use crate::exposed::Exposure;
use crate::nodes::Nodes;

/// Options of read-only bind mounts.
pub const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// Returns the edits for a feature, and why nodes are left out; empty if the machine lacks it.
pub fn edits(feature: Feature, nodes: &Nodes, driver_root: &Path) -> (Edits, Vec<String>) {
    let (directory, fits): (_, fn(&str) -> bool) = match feature {
        Feature::Gds => ("/dev", |name| is_numbered(name, "nvidia-fs")),
        Feature::Mofed => ("/dev/infiniband", |name| {
            name == "rdma_cm" || is_numbered(name, "uverbs")
        }),
        Feature::Gdrcopy => ("/dev", |name| name == "gdrdrv"),
        Feature::Nvswitch => ("/dev", |name| {
            name == "nvidia-nvswitchctl" || is_numbered(name, "nvidia-nvswitch")
        }),
    };
    let mut refused = Vec::new();
    let mut found = nodes.matching(directory, fits, &mut refused);
    let mut edits = Edits::default();
    // Ignore nodes that vanish concurrently.
    found.retain(|path| nodes.add(path, &mut edits).is_ok());
    if feature == Feature::Gds && !found.is_empty() {
        let mut exposure = Exposure::default();
        for (path, is_directory) in [("/run/udev", true), ("/etc/cufile.json", false)] {
            let on_host = driver_root.join(path.trim_start_matches('/'));
            let found = std::fs::metadata(&on_host);
            if found.is_ok_and(|facts| facts.is_dir() == is_directory)
                && exposure.may_name(&on_host)
            {
                edits.mounts.push(Mount {
                    host_path: on_host.to_string_lossy().into_owned(),
                    container_path: path.into(),
                    options: READ_ONLY.map(str::to_owned).to_vec(),
                    kind: String::new(),
                });
            }
        }
        refused.extend(exposure.warnings());
    }
    (edits, refused)
}

/// Returns true for the word with a number: other names say no device of the driver.
fn is_numbered(name: &str, word: &str) -> bool {
    let number = name.strip_prefix(word).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}
