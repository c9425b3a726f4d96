//! Finds devices other than GPUs that are added only on request: GPUDirect Storage, Mellanox OFED, GDRCopy, NVSwitch.

use std::path::Path;

use libnvc::host::{DriverRoot, FileClass};
use libnvc::plan::{Intent, Place};
use libnvc::{ContainerPath, HostPath};
use nvc_policy::image::features::Feature;

use crate::exposed::Exposure;
use crate::nodes::Nodes;

/// Returns the intents for a feature, and why nodes are left out; empty if the machine lacks it.
pub fn intents(feature: Feature, nodes: &Nodes, driver_root: &Path) -> (Vec<Intent>, Vec<String>) {
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
    let found = nodes.matching(directory, fits, &mut refused);
    // Ignore nodes that vanish concurrently.
    let found = found.iter().filter_map(|path| nodes.device(path).ok());
    let mut found: Vec<Intent> = found.collect();
    if feature == Feature::Gds && !found.is_empty() {
        let root = DriverRoot::open(driver_root).ok();
        for (path, class) in [
            ("/run/udev", FileClass::DataDir),
            ("/etc/cufile.json", FileClass::Config),
        ] {
            let on_host = root
                .as_ref()
                .and_then(|root| root.on_host(&HostPath::new(path)));
            let is_directory = class == FileClass::DataDir;
            let fits = |path: &HostPath| path.as_path().is_dir() == is_directory;
            if let Some(on_host) = on_host.filter(fits) {
                let place = Place::At(ContainerPath::new(path));
                found.push(Intent::mount(on_host, place, class));
            }
        }
    }
    match Exposure::of(&mut found) {
        Ok(warnings) => refused.extend(warnings),
        Err(error) => refused.push(error.message()),
    }
    (found, refused)
}

/// Returns true for the word with a number: other names say no device of the driver.
fn is_numbered(name: &str, word: &str) -> bool {
    let number = name.strip_prefix(word).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}
