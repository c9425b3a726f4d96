//! Describes GPUs and MIG devices as devices of a ResourceSlice: names, attributes and capacities are NVIDIA's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceCapacity, DeviceTaint, DeviceToleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use libnvc::host::monitor::{MigPlacement, architecture};

use crate::machine::{Gpu, Health, Machine, Mig};
use crate::options::DRIVER;

/// Length limits of a string and of a version.
const MAX_TEXT: usize = 64;

/// A device that can be claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'m> {
    pub(crate) gpu: &'m Gpu,
    pub(crate) mig: Option<&'m Mig>,
}

impl Entry<'_> {
    /// Returns the name: `gpu-0`, `gpu-0-mig-1g12gb-19-0`.
    pub(crate) fn name(&self) -> String {
        let minor = self.gpu.minor;
        match self.mig {
            None => format!("gpu-{minor}"),
            Some(mig) => {
                let profile: String = mig.profile.chars().filter(|c| *c != '.').collect();
                // Words such as `+me` are not part of a name.
                let profile = profile.replace('+', "-");
                let (id, start) = (mig.placement.profile, mig.placement.start);
                format!("gpu-{minor}-mig-{profile}-{id}-{start}")
            }
        }
    }

    pub(crate) fn uuid(&self) -> &str {
        self.mig.map_or(&self.gpu.uuid, |mig| &mig.uuid)
    }

    /// Returns the health: a MIG device of a sick GPU is sick.
    pub(crate) fn health(&self) -> &Health {
        match self.mig {
            Some(mig) if self.gpu.health.is_well() => &mig.health,
            _ => &self.gpu.health,
        }
    }
}

/// Returns the devices that can be claimed: a GPU in MIG mode has only its MIG devices.
pub(crate) fn entries(machine: &Machine) -> impl Iterator<Item = Entry<'_>> {
    machine.gpus.iter().flat_map(|gpu| {
        let whole = (!gpu.is_divided).then_some(Entry { gpu, mig: None });
        let migs = gpu.migs.iter().filter(|_| gpu.is_divided);
        let migs = migs.map(move |mig| Entry {
            gpu,
            mig: Some(mig),
        });
        whole.into_iter().chain(migs)
    })
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// Returns the devices of a machine. Those that are sick, or given by another program, are tainted, or left out if the API
/// server has no taints.
pub(crate) fn published(
    machine: &Machine,
    sys: &Path,
    taints: bool,
    given: &BTreeMap<String, String>,
) -> Vec<Device> {
    let described = entries(machine).map(|entry| {
        let is_given = given.contains_key(entry.uuid()) || given.contains_key(&entry.gpu.uuid);
        Device {
            taints: taint(entry.health(), is_given).map(|taint| vec![taint]),
            ..device(&entry, machine, sys)
        }
    });
    described
        .filter(|device| taints || device.taints.is_none())
        .collect()
}

fn device(entry: &Entry<'_>, machine: &Machine, sys: &Path) -> Device {
    let gpu = entry.gpu;
    let mut attributes = BTreeMap::new();
    let mut add = |name: &str, value: DeviceAttribute| {
        attributes.insert(name.to_owned(), value);
    };
    add("uuid", text(entry.uuid()));
    add("productName", text(&gpu.model));
    add("brand", text(&gpu.brand));
    let family = architecture(gpu.compute).unwrap_or("Unknown");
    add("architecture", text(family));
    let (major, minor) = gpu.compute;
    add(
        "cudaComputeCapability",
        version(&format!("{major}.{minor}")),
    );
    add("driverVersion", version(&machine.driver));
    add("cudaDriverVersion", version(&machine.cuda));
    add("resource.kubernetes.io/pciBusID", text(&gpu.busid));
    let pci = Pci::of(sys, &gpu.busid);
    if let Some(root) = &pci.root {
        add("resource.kubernetes.io/pcieRoot", text(root));
    }
    if let Some(node) = pci.numa {
        add("resource.kubernetes.io/numaNode", int(node));
    }
    if let Some(mode) = &gpu.addressing {
        add("addressingMode", text(mode));
    }
    let mut capacity = BTreeMap::new();
    let mut have = |name: String, value: Quantity| {
        capacity.insert(
            name,
            DeviceCapacity {
                value,
                ..DeviceCapacity::default()
            },
        );
    };
    match entry.mig {
        None => {
            add("type", text("gpu"));
            if let Some(memory) = gpu.memory {
                have("memory".into(), bytes(memory));
            }
        }
        Some(mig) => {
            add("type", text("mig"));
            add("parentUUID", text(&gpu.uuid));
            add("profile", text(&mig.profile));
            let has = &mig.attributes;
            for (name, count) in [
                ("multiprocessors", has.multiprocessors),
                ("copyEngines", has.copy_engines),
                ("decoders", has.decoders),
                ("encoders", has.encoders),
                ("jpegEngines", has.jpeg_engines),
                ("ofaEngines", has.ofa_engines),
            ] {
                have(name.into(), Quantity(count.to_string()));
            }
            have("memory".into(), bytes(has.memory << 20));
            let MigPlacement { start, size, .. } = mig.placement;
            for slice in start..start.saturating_add(size.min(16)) {
                have(format!("memorySlice{slice}"), Quantity("1".into()));
            }
        }
    }
    Device {
        name: entry.name(),
        attributes: Some(attributes),
        capacity: Some(capacity),

        ..Device::default()
    }
}

/// Returns the taint of a device, which keeps new pods away.
fn taint(health: &Health, is_given: bool) -> Option<DeviceTaint> {
    let (key, value) = match health {
        Health::Well if is_given => ("device-plugin", None),
        Health::Well => return None,
        Health::Sick { xid: Some(xid), .. } => ("xid", Some(xid.to_string())),
        Health::Sick { xid: None, .. } => ("gpu-lost", None),
    };
    Some(DeviceTaint {
        key: format!("{DRIVER}/{key}"),
        value,
        effect: "NoSchedule".into(),
        time_added: None,
    })
}

/// Returns true if a device is well, or its claim tolerates its taint: others would not have been given it.
pub(crate) fn is_tolerable(health: &Health, tolerations: &[DeviceToleration]) -> bool {
    let Some(taint) = taint(health, false) else {
        return true;
    };
    let is_any = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    tolerations.iter().any(|one| {
        let exists = one.operator.as_deref() == Some("Exists");
        (is_any(&one.key) && exists || one.key.as_ref() == Some(&taint.key))
            && (exists || one.value == taint.value)
            && (is_any(&one.effect) || one.effect.as_ref() == Some(&taint.effect))
    })
}

/// Where sysfs says that a GPU is.
#[derive(Debug, PartialEq, Eq)]
struct Pci {
    /// `pci0000:3a`.
    root: Option<String>,
    numa: Option<i64>,
}

impl Pci {
    fn of(sys: &Path, busid: &str) -> Self {
        let device = sys.join("bus/pci/devices").join(busid);
        let numa = fs::read_to_string(device.join("numa_node")).ok();
        let path = fs::canonicalize(&device).unwrap_or_default();
        let mut names = path.iter().filter_map(|name| name.to_str());
        Self {
            root: names.find(|name| name.starts_with("pci")).map(Into::into),
            // Negative on machines without NUMA.
            numa: numa
                .and_then(|text| text.trim().parse().ok())
                .filter(|node| *node >= 0),
        }
    }
}

fn text(text: &str) -> DeviceAttribute {
    DeviceAttribute {
        string: Some(text.chars().take(MAX_TEXT).collect()),
        ..DeviceAttribute::default()
    }
}

fn int(number: i64) -> DeviceAttribute {
    DeviceAttribute {
        int: Some(number),
        ..DeviceAttribute::default()
    }
}

/// Returns a version as semver has it: three numbers without leading zeros, so that 595.58.03 is 595.58.3.
fn version(text: &str) -> DeviceAttribute {
    let mut parts = text
        .split('.')
        .map(|part| part.parse::<u64>().unwrap_or_default());
    let mut next = || parts.next().unwrap_or_default();
    let version = format!("{}.{}.{}", next(), next(), next());
    DeviceAttribute {
        version: Some(version),
        ..DeviceAttribute::default()
    }
}

/// Returns a number of bytes as the API server writes it back.
fn bytes(mut number: u64) -> Quantity {
    let mut units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"].iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while number != 0 && number.is_multiple_of(1024) {
        let Some(next) = units.next() else { break };
        unit = next;
        number /= 1024;
    }
    Quantity(format!("{number}{unit}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use libnvc::host::monitor::MigAttributes;

    use super::*;

    /// A machine with a whole GPU and one with a MIG device.
    pub(crate) fn machine() -> Machine {
        let gpu = Gpu {
            minor: 0,
            uuid: "GPU-0".into(),
            busid: "0000:3b:00.0".into(),
            model: "NVIDIA H100 80GB HBM3".into(),
            brand: "Nvidia".into(),
            compute: (9, 0),
            memory: Some(80 << 30),
            addressing: Some("None".into()),
            is_divided: false,
            migs: Vec::new(),
            health: Health::Well,
        };
        let mig = Mig {
            uuid: "MIG-0".into(),
            profile: "1g.12gb".into(),
            instances: (1, 0),
            placement: MigPlacement {
                profile: 19,
                start: 2,
                size: 1,
            },
            attributes: MigAttributes {
                multiprocessors: 16,
                copy_engines: 1,
                decoders: 1,
                jpeg_engines: 1,
                memory: 11_008,
                ..MigAttributes::default()
            },
            health: Health::Well,
        };
        let divided = Gpu {
            minor: 1,
            uuid: "GPU-1".into(),
            is_divided: true,
            migs: vec![mig],
            ..gpu.clone()
        };
        Machine {
            driver: "595.58.03".into(),
            cuda: "13.2".into(),
            gpus: vec![gpu, divided],
        }
    }

    #[test]
    fn devices_are_nvidias() {
        let machine = machine();
        let devices = published(&machine, Path::new("/no/such"), true, &BTreeMap::new());
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["gpu-0", "gpu-1-mig-1g12gb-19-2"]);
        let attribute =
            |n: usize, name: &str| devices[n].attributes.as_ref().unwrap()[name].clone();
        assert_eq!(attribute(0, "driverVersion").version.unwrap(), "595.58.3");
        assert_eq!(attribute(0, "cudaDriverVersion").version.unwrap(), "13.2.0");
        assert_eq!(attribute(0, "architecture").string.unwrap(), "Hopper");
        assert_eq!(attribute(1, "parentUUID").string.unwrap(), "GPU-1");
        let capacity =
            |n: usize, name: &str| devices[n].capacity.as_ref().unwrap()[name].value.0.clone();
        assert_eq!(capacity(0, "memory"), "80Gi");
        assert_eq!(capacity(1, "memory"), "11008Mi");
        assert_eq!(capacity(1, "memorySlice2"), "1");
        // The API's limit.
        assert!(devices.iter().all(|device| {
            device.attributes.as_ref().unwrap().len() + device.capacity.as_ref().unwrap().len()
                <= 32
        }));
    }

    #[test]
    fn a_sick_gpu_is_tainted_or_left_out_and_the_others_stay() {
        let mut machine = machine();
        let sick = Health::Sick {
            reason: "off the bus".into(),
            xid: Some(79),
        };
        machine.gpus[1].health = sick;
        let mut given = BTreeMap::new();
        let shown = |taints, given: &_| published(&machine, Path::new("/no/such"), taints, given);
        let taints = shown(true, &given).pop().unwrap().taints.unwrap();
        assert_eq!(taints[0].key, "gpu.nvidia.com/xid");
        assert_eq!(taints[0].value.as_deref(), Some("79"));
        let left = shown(false, &given).into_iter().map(|device| device.name);
        assert_eq!(left.collect::<Vec<_>>(), ["gpu-0"]);
        // A device plugin has the other one.
        given.insert("GPU-0".into(), "ns/p".into());
        let key = |n: usize| {
            shown(true, &given)[n].taints.as_ref().unwrap()[0]
                .key
                .clone()
        };
        assert_eq!(
            [key(0), key(1)],
            ["gpu.nvidia.com/device-plugin", "gpu.nvidia.com/xid"]
        );
        assert!(shown(false, &given).is_empty());
    }

    #[test]
    fn only_a_toleration_of_its_own_taint_counts() {
        let sick = Health::Sick {
            reason: "off the bus".into(),
            xid: Some(79),
        };
        let toleration = |key: &str, operator: &str, value: Option<&str>| DeviceToleration {
            key: Some(key.into()),
            operator: Some(operator.into()),
            value: value.map(Into::into),
            ..DeviceToleration::default()
        };
        assert!(is_tolerable(&Health::Well, &[]));
        assert!(!is_tolerable(&sick, &[]));
        let xid = "gpu.nvidia.com/xid";
        for (key, operator, value, expected) in [
            ("", "Exists", None, true),
            (xid, "Exists", None, true),
            (xid, "Equal", Some("79"), true),
            (xid, "Equal", Some("31"), false),
            ("example.com/mine", "Exists", None, false),
        ] {
            let found = is_tolerable(&sick, &[toleration(key, operator, value)]);
            assert_eq!(found, expected, "{key} {operator}");
        }
        let other = DeviceToleration {
            effect: Some("NoExecute".into()),
            ..toleration(xid, "Exists", None)
        };
        assert!(!is_tolerable(&sick, &[other]));
    }

    #[test]
    fn quantities_and_places() {
        for (number, expected) in [(0, "0"), (1000, "1000"), (1024, "1Ki"), (5 << 20, "5Mi")] {
            assert_eq!(bytes(number).0, expected);
        }
        let sys = tempfile::tempdir().unwrap();
        let device = sys
            .path()
            .join("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        fs::create_dir_all(sys.path().join("bus/pci/devices")).unwrap();
        let link = sys.path().join("bus/pci/devices/0000:3b:00.0");
        std::os::unix::fs::symlink(&device, link).unwrap();
        let found = Pci::of(sys.path(), "0000:3b:00.0");
        assert_eq!(
            found,
            Pci {
                root: Some("pci0000:3a".into()),
                numa: Some(1)
            }
        );
    }
}
