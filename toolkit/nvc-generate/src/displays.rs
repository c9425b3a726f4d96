//! Finds files for graphics that the prestart hook does not add: the chosen GPUs' DRM nodes, platform libraries and
//! configuration files.

use std::fs;
use std::path::Path;

use libnvc::host::{CharDrivers, DriverRoot, drm, everything};
use libnvc::{Error, ErrorKind, Result, plan};
use nvc_cdi::Edits;
use nvc_policy::image::Devices;

use super::{Options, driver};
use crate::driver_files;

/// The kernel module's directory of GPUs.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Returns the edits for a container with the GPUs at these PCI addresses.
///
/// # Errors
/// There is no driver.
pub fn displays(options: &Options, addresses: &[String]) -> Result<Edits> {
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
    let drivers = CharDrivers::discover();
    for address in addresses {
        let found = drm::displays(address, &dev_root, &drivers);
        let intents = plan::displays(&found.nodes, &found.links, &request);
        edits.append(&driver::edits(&intents, options));
    }
    let found = everything::graphics(&root, &version, &search)?;
    edits.append(&driver::edits(&plan::graphics(&found, &request), options));
    Ok(edits)
}

/// Returns the PCI addresses of requested GPUs as the kernel module lists them, and the names that it cannot resolve: for
/// a driver that cannot be queried.
///
/// The module does not know NVML's indices, and a minor number is no index. Only if there is one GPU, it has index 0.
pub fn addresses_of_module(devices: &Devices) -> (Vec<String>, Vec<String>) {
    chosen(&gpus(Path::new(GPUS)), devices)
}

fn chosen(gpus: &[Gpu], devices: &Devices) -> (Vec<String>, Vec<String>) {
    let all = || gpus.iter().map(|gpu| gpu.bus.clone()).collect();
    let names = match devices {
        Devices::None => return (Vec::new(), Vec::new()),
        Devices::All => return (all(), Vec::new()),
        Devices::Names(names) => names,
    };
    let (mut addresses, mut unresolved) = (Vec::new(), Vec::new());
    for name in names {
        let mut found = gpus.iter();
        match found
            .find(|gpu| *name == gpu.uuid || *name == gpu.bus || gpus.len() == 1 && name == "0")
        {
            Some(gpu) if addresses.contains(&gpu.bus) => {}
            Some(gpu) => addresses.push(gpu.bus.clone()),
            None => unresolved.push(name.clone()),
        }
    }
    (addresses, unresolved)
}

/// A GPU as described by procfs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Gpu {
    bus: String,
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
            uuid: field("GPU UUID"),
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
    fn the_module_resolves_what_it_knows() {
        let gpu = |n: u32| {
            // Minor numbers are in another order than addresses.
            let text = format!(
                "Model: \t\t NVIDIA A10\nGPU UUID: \t GPU-{n}\nBus Location: \t 0000:0{n}:00.0\nDevice Minor: \t {}\n",
                1 - n
            );
            Gpu::read(&text)
        };
        let of = |gpus: &[Gpu], names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let (addresses, unresolved) = chosen(gpus, &Devices::Names(names));
            format!("{} but {}", addresses.join(" "), unresolved.join(" "))
        };
        let two = [gpu(0), gpu(1)];
        for (names, expected) in [
            (&["GPU-1"][..], "0000:01:00.0 but "),
            (&["0000:00:00.0", "GPU-0"], "0000:00:00.0 but "),
            // An index is NVML's.
            (&["0"], " but 0"),
            (&["1", "GPU-0"], "0000:00:00.0 but 1"),
            (&["MIG-1", ""], " but MIG-1 "),
        ] {
            assert_eq!(of(&two, names), expected, "{names:?}");
        }
        assert_eq!(of(&two[1..], &["0", "1"]), "0000:01:00.0 but 1");
        assert_eq!(chosen(&two, &Devices::All).0.len(), 2);
        assert!(chosen(&two, &Devices::None).0.is_empty());
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
