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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use libnvc::host::CharDrivers;
    use libnvc::plan::{Mount, What};
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// NixOS has links in /etc, and a driver container its own /etc.
    #[test]
    #[ignore = "needs root"]
    fn configuration_behind_a_link_is_that_of_the_driver_root() {
        let dir = crate::scratch();
        let at = |path: &str| dir.path().join(path);
        for path in ["dev", "etc", "store", "var/udev"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&at("dev/nvidia-fs0"), SFlag::S_IFCHR, mode, makedev(511, 0)).unwrap();
        symlink("/var", at("run")).unwrap();
        let nodes = Nodes {
            root: dir.path().into(),
            drivers: CharDrivers::of("Character devices:\n511 nvidia-fs\n", ""),
        };
        let mounts = || {
            let (found, refused) = intents(Feature::Gds, &nodes, dir.path());
            assert_eq!(refused, [""; 0]);
            let mounts = found.into_iter().filter_map(|intent| match intent.what {
                What::Mount(Mount { source, place, .. }) => {
                    let source = source.as_path().strip_prefix(dir.path()).unwrap();
                    Some((source.to_owned(), place))
                }
                _ => None,
            });
            mounts.collect::<Vec<_>>()
        };
        let udev = (
            "var/udev".into(),
            Place::At(ContainerPath::new("/run/udev")),
        );
        // The host has that file, this root does not.
        symlink("/etc/passwd", at("etc/cufile.json")).unwrap();
        assert_eq!(mounts(), std::slice::from_ref(&udev));
        fs::remove_file(at("etc/cufile.json")).unwrap();
        fs::write(at("store/cufile"), "{}").unwrap();
        symlink("/store/cufile", at("etc/cufile.json")).unwrap();
        let place = Place::At(ContainerPath::new("/etc/cufile.json"));
        assert_eq!(mounts(), [udev, ("store/cufile".into(), place)]);
    }
}
