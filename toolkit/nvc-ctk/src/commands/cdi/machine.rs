//! Describes this machine in a specification's comment, as far as procfs does, so that a timer can compare it later.
//!
//! NVML would wake a GPU that sleeps, and without persistence mode takes seconds. The listing of MIG devices in procfs
//! costs nothing, and decides which devices a specification has: names, UUIDs and nodes follow from their numbers. At
//! boot, modules that a desktop needs are loaded late: the driver's names in /proc/devices and the GPUs' displays in sysfs
//! decide about the other nodes. /dev itself is not looked at, which a container may have as a volume.

use std::fs;
use std::hash::Hasher as _;
use std::path::Path;

use fnv::FnvHasher;
use libnvc::host::{DriverRoot, procfs};

const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// The driver's version, the MIG devices, and what else has nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// The version of the loaded module; empty without one.
    driver: String,
    /// A hash of the list of MIG devices; None if there is none.
    mig: Option<String>,
    /// A hash of the drivers and displays that have nodes.
    nodes: String,
}

/// Returns a short hash of a text (FNV-1a); forging it has no benefit.
fn mark(text: &str) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    format!("{}:{:016x}", text.len(), hasher.finish())
}

impl Machine {
    /// Reads procfs.
    pub(super) fn here() -> Self {
        Self::read(Path::new("/"))
    }

    fn read(root: &Path) -> Self {
        let driver = DriverRoot::open(root).ok();
        let driver = driver.and_then(|root| procfs::module_version(&root));
        let mut instances = instances(&root.join(CAPABILITIES));
        instances.sort();
        Self {
            driver: driver.unwrap_or_default(),
            mig: (!instances.is_empty()).then(|| mark(&instances.join("\n"))),
            nodes: mark(&nodes(root).join("\n")),
        }
    }

    /// Returns the form in which a comment has it.
    pub(super) fn to_text(&self) -> String {
        let driver = match self.driver.as_str() {
            "" => "none",
            version => version,
        };
        let mig = self.mig.as_deref().unwrap_or("none");
        format!("driver {driver}, MIG {mig}, nodes {}", self.nodes)
    }

    fn parse(text: &str) -> Option<Self> {
        let (driver, mig) = text.strip_prefix("driver ")?.split_once(", MIG ")?;
        let (mig, nodes) = mig.split_once(", nodes ")?;
        let some = |word: &str| (word != "none").then(|| word.to_owned());
        Some(Self {
            driver: some(driver).unwrap_or_default(),
            mig: some(mig),
            nodes: nodes.to_owned(),
        })
    }

    /// Returns how this machine differs from the one of a comment; None if a specification can be left alone.
    ///
    /// Without MIG devices, then and now, the driver's version does not count: boot, the udev rule and the path unit see
    /// to that, and a specification that cannot be written would otherwise wake the GPU again and again.
    pub(super) fn change_since(&self, recorded: Option<&str>) -> Option<String> {
        let Some(before) = recorded.and_then(Self::parse) else {
            // A file of an earlier version.
            return Some("does not say for which machine it was made".into());
        };
        if before.mig != self.mig {
            return Some("was made for other MIG devices".into());
        }
        if before.nodes != self.nodes {
            return Some("was made when other kernel modules were loaded".into());
        }
        (self.mig.is_some() && before.driver != self.driver).then(|| {
            format!(
                "was made for driver {}; the machine has {}",
                before.driver, self.driver
            )
        })
    }
}

/// Returns the GPU and compute instances in procfs, as paths.
fn instances(capabilities: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (gpu, directory) in below(capabilities, "gpu") {
        for (gi, directory) in below(&directory.join("mig"), "gi") {
            found.push(format!("{gpu}/{gi}"));
            let compute = below(&directory, "ci").into_iter();
            found.extend(compute.map(|(ci, _)| format!("{gpu}/{gi}/{ci}")));
        }
    }
    found
}

/// Returns the driver's names in /proc/devices, and those of its GPUs' DRM nodes.
fn nodes(root: &Path) -> Vec<String> {
    let devices = fs::read(root.join("proc/devices")).unwrap_or_default();
    let devices = String::from_utf8_lossy(&devices);
    let names = devices.split_ascii_whitespace();
    let mut found: Vec<_> = names
        .filter(|name| name.starts_with("nvidia"))
        .map(str::to_owned)
        .collect();
    let gpus = DriverRoot::open(root).map_or_else(|_| Vec::new(), |root| procfs::gpus(&root));
    for gpu in gpus {
        let displays = root
            .join("sys/bus/pci/devices")
            .join(&gpu.busid)
            .join("drm");
        for start in ["card", "renderD"] {
            let names = below(&displays, start).into_iter();
            found.extend(names.map(|(name, _)| format!("{} {name}", gpu.busid)));
        }
    }
    found.sort();
    found
}

/// Returns the entries of a directory whose names start so.
fn below(directory: &Path, start: &str) -> Vec<(String, std::path::PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.starts_with(start).then(|| (name, entry.path()))
    });
    named.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_mig_devices_are_a_change() {
        let root = tempfile::tempdir().unwrap();
        let nvidia = root.path().join("proc/driver/nvidia");
        let add = |path: &str| fs::create_dir_all(nvidia.join(path)).unwrap();
        let version = |version: &str| {
            let text = format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu\n");
            fs::write(nvidia.join("version"), text).unwrap();
        };
        let now = || Machine::read(root.path());
        // What every driver has, and what one has with MIG mode.
        add("capabilities/mig");
        add("capabilities/gpu0/mig");
        version("570.1.2");
        let plain = now();
        let nodes = plain.nodes.clone();
        assert_eq!(
            plain.to_text(),
            format!("driver 570.1.2, MIG none, nodes {nodes}")
        );
        assert_eq!(Machine::parse(&plain.to_text()), Some(plain.clone()));
        let recorded = plain.to_text();
        assert_eq!(plain.change_since(Some(&recorded)), None);
        assert!(plain.change_since(None).is_some());
        version("575.1.2");
        assert_eq!(now().change_since(Some(&recorded)), None);

        add("gpus/0000:01:00.0");
        let displays = "sys/bus/pci/devices/0000:01:00.0/drm";
        fs::create_dir_all(root.path().join(displays).join("card1")).unwrap();
        let with_display = now();
        fs::write(root.path().join("proc/devices"), "195 nvidia-modeset\n").unwrap();
        for before in [plain.clone(), with_display] {
            assert!(now().change_since(Some(&before.to_text())).is_some());
        }
        fs::remove_file(root.path().join("proc/devices")).unwrap();
        fs::remove_dir_all(root.path().join("sys")).unwrap();

        add("capabilities/gpu0/mig/gi1/ci0");
        let (divided, text) = (now(), now().to_text());
        assert!(divided.change_since(Some(&recorded)).is_some());
        assert_eq!(divided.change_since(Some(&text)), None);
        assert!(plain.change_since(Some(&text)).is_some());
        add("capabilities/gpu0/mig/gi1/ci1");
        assert_eq!(
            now().change_since(Some(&text)).unwrap(),
            "was made for other MIG devices"
        );
        let text = now().to_text();
        version("575.9");
        assert_eq!(
            now().change_since(Some(&text)).unwrap(),
            "was made for driver 575.1.2; the machine has 575.9"
        );
    }
}
