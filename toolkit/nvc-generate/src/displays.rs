//! Finds files for graphics that the prestart hook does not add: the chosen GPUs' DRM nodes, platform libraries and
//! configuration files.

use std::fs;
use std::path::Path;

use libnvc::host::{CharDrivers, DriverRoot, Gpu, drm, everything};
use libnvc::select::select_devices;
use libnvc::{Error, ErrorKind, Result, plan};
use nvc_cdi::Edits;
use nvc_policy::image::Devices;

use crate::draft::Draft;
use crate::{Options, driver, driver_files, render};

/// The kernel module's directory of GPUs.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Returns the edits for the files that every container with graphics gets.
///
/// # Errors
/// There is no driver.
pub fn graphics(options: &Options) -> Result<Edits> {
    let root = DriverRoot::open(&driver::root(options))?;
    let search = driver::search(options);
    let version = everything::version(&root, &search.libraries).ok_or_else(|| {
        let found = driver_files::version(&options.driver_root);
        let what = found.err().map(|error| error.message()).unwrap_or_default();
        let text = format!("failed to construct discoverer for graphics libraries: failed to get driver version: {what}");
        Error::new(ErrorKind::NotFound, text)
    })?;
    let found = everything::graphics(&root, &version, &search)?;
    let intents = plan::graphics(&found, &driver::request());
    Ok(render::edits(&intents, options))
}

/// Returns the edits for the display nodes of the GPUs at these PCI addresses.
///
/// # Errors
/// The root of the device nodes cannot be opened.
pub fn displays(options: &Options, addresses: &[String]) -> Result<Edits> {
    let request = driver::request();
    let dev_root = driver::dev_root(options)?;
    let drivers = CharDrivers::discover();
    let mut draft = Draft::default();
    for address in addresses {
        let found = drm::displays(address, &dev_root, &drivers);
        let intents = plan::displays(&found.nodes, &found.links, &request);
        draft.append(&render::draft(&intents, options));
    }
    draft.join_links();
    Ok(draft.render(&options.hooks.program))
}

/// Returns the PCI addresses of requested GPUs as the kernel module lists them, and the names that it cannot resolve: for
/// a driver that cannot be queried.
///
/// The module does not know NVML's indices, and a minor number is no index. Only if there is one GPU, it has index 0.
pub fn addresses_of_module(devices: &Devices) -> (Vec<String>, Vec<String>) {
    chosen(&gpus(Path::new(GPUS)), devices)
}

fn chosen(gpus: &[Gpu], devices: &Devices) -> (Vec<String>, Vec<String>) {
    let names = match devices {
        Devices::None => return (Vec::new(), Vec::new()),
        Devices::All => {
            return (
                gpus.iter().map(|gpu| gpu.busid.clone()).collect(),
                Vec::new(),
            );
        }
        Devices::Names(names) => names,
    };
    let mut gpus = gpus.to_vec();
    let is_alone = gpus.len() == 1;
    gpus.iter_mut().for_each(|gpu| gpu.index = 0);
    let (mut addresses, mut unresolved) = (Vec::new(), Vec::new());
    for name in names {
        // A UUID or an address.
        let is_known = is_alone || name.contains(['-', ':']);
        let found = if is_known {
            select_devices(&gpus, &[], &[name]).map_or(Vec::new(), |found| found.whole)
        } else {
            Vec::new()
        };
        if found.is_empty() {
            unresolved.push(name.clone());
        }
        for gpu in found {
            if !addresses.contains(&gpu.busid) {
                addresses.push(gpu.busid.clone());
            }
        }
    }
    (addresses, unresolved)
}

/// Reads a GPU as described by procfs; its index is unknown.
fn read(text: &str) -> Gpu {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| key.trim() == name);
        found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let bus = field("Bus Location").to_ascii_lowercase();
    // NVML and names have eight digits of the domain.
    let busid = match bus.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}"),
        None => bus,
    };
    Gpu {
        uuid: field("GPU UUID"),
        busid,
        ..Gpu::default()
    }
}

fn gpus(directory: &Path) -> Vec<Gpu> {
    let mut found: Vec<Gpu> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("information")).ok())
        .map(|text| read(&String::from_utf8_lossy(&text)))
        .filter(|gpu| is_bus(&gpu.busid))
        .collect();
    found.sort_by(|one, other| one.busid.cmp(&other.busid));
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
            read(&text)
        };
        let of = |gpus: &[Gpu], names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let (addresses, unresolved) = chosen(gpus, &Devices::Names(names));
            format!("{} but {}", addresses.join(" "), unresolved.join(" "))
        };
        let two = [gpu(0), gpu(1)];
        for (names, expected) in [
            (&["GPU-1"][..], "00000000:01:00.0 but "),
            (&["0000:00:00.0", "GPU-0"], "00000000:00:00.0 but "),
            // An index is NVML's.
            (&["0"], " but 0"),
            (&["1", "GPU-0"], "00000000:00:00.0 but 1"),
            (&["MIG-1", ""], " but MIG-1 "),
        ] {
            assert_eq!(of(&two, names), expected, "{names:?}");
        }
        assert_eq!(of(&two[1..], &["0", "1"]), "00000000:01:00.0 but 1");
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
        let places: Vec<String> = gpus(dir.path()).into_iter().map(|gpu| gpu.busid).collect();
        assert_eq!(places, ["00000000:01:00.0", "00000000:02:00.0"]);
    }
}
