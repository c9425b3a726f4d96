//! Finds files for graphics that the prestart hook does not add: the chosen GPUs' DRM nodes, platform libraries and
//! configuration files. Maps GPUs to nodes by procfs, without querying the driver.

use std::fs;
use std::path::Path;

use libnvc::host::{DriverRoot, drm, everything};
use libnvc::{Error, ErrorKind, Result, plan};

use super::{Options, driver};
use crate::cdi::Edits;
use crate::driver_files;
use crate::image::Devices;

/// The kernel module's directory of GPUs.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Returns the edits for a container with these devices.
///
/// # Errors
/// There is no driver.
pub fn displays(options: &Options, devices: &Devices) -> Result<Edits> {
    let root = DriverRoot::open(&driver::root(options))?;
    let search = driver::search(options);
    let version = everything::version(&root, &search.libraries).ok_or_else(|| {
        let found = driver_files::version(&options.driver_root);
        let what = found.err().unwrap_or_default();
        let text = format!("failed to construct discoverer for graphics libraries: failed to get driver version: {what}");
        Error::new(ErrorKind::NotFound, text)
    })?;
    let request = driver::request();
    let dev_root = driver::dev_root(options)?;
    let mut edits = Edits::default();
    for gpu in gpus(Path::new(GPUS)) {
        if gpu.is_chosen(devices) {
            let found = drm::displays(&gpu.bus, &dev_root);
            let intents = plan::displays(&found.nodes, &found.links, &request);
            edits.append(&driver::edits(&intents, options));
        }
    }
    let found = everything::graphics(&root, &version, &search)?;
    edits.append(&driver::edits(&plan::graphics(&found, &request), options));
    Ok(edits)
}

/// A GPU as described by procfs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Gpu {
    bus: String,
    minor: String,
    uuid: String,
}

impl Gpu {
    fn read(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        Self {
            bus: field("Bus Location").to_ascii_lowercase(),
            minor: field("Device Minor"),
            uuid: field("GPU UUID"),
        }
    }

    fn is_chosen(&self, devices: &Devices) -> bool {
        match devices {
            Devices::None => false,
            Devices::All => true,
            Devices::Names(names) => names.iter().any(|name| {
                name == "all" || *name == self.minor || *name == self.uuid || *name == self.bus
            }),
        }
    }
}

fn gpus(directory: &Path) -> Vec<Gpu> {
    let mut found: Vec<Gpu> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("information")).ok())
        .map(|text| Gpu::read(&String::from_utf8_lossy(&text)))
        .filter(|gpu| is_bus(&gpu.bus))
        .collect();
    found.sort_by(|one, other| one.bus.cmp(&other.bus));
    found
}

/// Returns true if this is a PCI address, and therefore a single path component.
fn is_bus(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_hexdigit() || ":.".contains(c))
        && text != ".."
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_chosen_by_minor_uuid_and_place() {
        let text = "Model: \t\t NVIDIA A10\nGPU UUID: \t GPU-a\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n";
        let gpu = Gpu::read(text);
        assert_eq!(gpu.bus, "0000:01:00.0");
        let chosen = |name: &str| gpu.is_chosen(&Devices::Names(vec![name.to_owned()]));
        for name in ["0", "GPU-a", "0000:01:00.0", "all"] {
            assert!(chosen(name), "{name}");
        }
        assert!(!chosen("1") && !chosen(""));
        assert!(gpu.is_chosen(&Devices::All) && !gpu.is_chosen(&Devices::None));
    }

    #[test]
    fn odd_places_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bus) in [
            ("a", "0000:02:00.0"),
            ("b", "../../etc"),
            ("c", "0000:01:00.0"),
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
            let text = format!("Bus Location: {bus}\n");
            fs::write(dir.path().join(name).join("information"), text).unwrap();
        }
        let places: Vec<String> = gpus(dir.path()).into_iter().map(|gpu| gpu.bus).collect();
        assert_eq!(places, ["0000:01:00.0", "0000:02:00.0"]);
    }
}
