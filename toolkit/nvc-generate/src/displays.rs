//! Finds files for graphics that the prestart hook does not add: the chosen GPUs' DRM nodes, platform libraries and
//! configuration files.

use std::path::Path;

use libnvc::host::procfs::{self, ModuleGpu};
use libnvc::host::search::{self, Contents};
use libnvc::host::{CharDrivers, DriverRoot, Gpu, drm};
use libnvc::plan::{Intent, Item};
use libnvc::request::Placement;
use libnvc::select::select_devices;
use libnvc::{Error, ErrorKind, Result};
use nvc_policy::image::Devices;

use crate::{Find, driver, driver_files};

/// Returns the intents for the files that every container with graphics gets, and warnings.
///
/// # Errors
/// There is no driver.
pub fn graphics(options: &Find) -> Result<(Vec<Intent>, Vec<String>)> {
    let root = DriverRoot::open(&driver::root(options))?;
    let wanted = driver::search(options, Contents::Graphics);
    let version = search::version(&root, &wanted.libraries).ok_or_else(|| {
        let found = driver_files::version(&options.driver_root);
        let what = found.err().map(|error| error.message()).unwrap_or_default();
        let text = format!("failed to construct discoverer for graphics libraries: failed to get driver version: {what}");
        Error::new(ErrorKind::NotFound, text)
    })?;
    let found = search::find(&root, Some(&version), &wanted)?;
    let mut intents = Item::Graphics(&found).plan(&driver::request(Placement::AsImage));
    let warnings = driver::on_host(&mut intents, options)?;
    Ok((intents, warnings))
}

/// Returns the intents for the display nodes of the GPUs at these PCI addresses.
///
/// # Errors
/// The root of the device nodes cannot be opened.
pub fn displays(options: &Find, addresses: &[String]) -> Result<Vec<Intent>> {
    let request = driver::request(Placement::AsImage);
    let dev_root = driver::dev_root(options)?;
    let drivers = CharDrivers::discover();
    let mut intents = Vec::new();
    for address in addresses {
        let found = drm::displays(address, &dev_root, &drivers);
        intents.extend(Item::Displays(&found.nodes, &found.links).plan(&request));
    }
    // Nodes of displays are best effort, and nobody but root can exchange those in /dev.
    driver::on_host(&mut intents, options)?;
    Ok(intents)
}

/// Returns the PCI addresses of requested GPUs as the kernel module lists them, and the names that it cannot resolve: for
/// a driver that cannot be queried.
///
/// The module does not know NVML's indices, and a minor number is no index. Only if there is one GPU, it has index 0.
pub fn addresses_of_module(devices: &Devices) -> (Vec<String>, Vec<String>) {
    let gpus = DriverRoot::open(Path::new("/")).map_or(Vec::new(), |root| procfs::gpus(&root));
    let gpus: Vec<Gpu> = gpus.into_iter().map(of_module).collect();
    chosen(&gpus, devices)
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

/// Converts a GPU that the module lists; its index is unknown.
fn of_module(gpu: ModuleGpu) -> Gpu {
    // NVML and names have eight digits of the domain.
    let busid = match gpu.busid.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}"),
        None => gpu.busid,
    };
    Gpu {
        uuid: gpu.uuid,
        busid,
        ..Gpu::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_module_resolves_what_it_knows() {
        let gpu = |n: u32| {
            of_module(ModuleGpu {
                busid: format!("0000:0{n}:00.0"),
                uuid: format!("GPU-{n}"),
                // Minor numbers are in another order than addresses.
                minor: Some(1 - n),
                is_pci: true,
                is_excluded: false,
                model: String::new(),
            })
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
}
