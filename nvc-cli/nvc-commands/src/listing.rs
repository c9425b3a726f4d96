//! Collects the output of `list`, in upstream's order.
//!
//! Container engines without their own hook turn these lines into mounts, one by one, so order and spelling matter.

use libnvc::host::nodes::{CAPABILITY_DIRECTORY, IMEX_DIRECTORY};
use libnvc::host::nvcaps::CAPABILITIES;
use libnvc::host::{Abi, DeviceNode, DriverFile, DriverInfo, DriverSession, FileClass, MigDevice};
use libnvc::select::{Choice, MigSelection};
use libnvc::{HostPath, Result};
use serde::Serialize;

use crate::failure::{Categorise, CommandError, category};
use crate::request::List;

/// Finds the device nodes of the driver's capabilities, on machines where capabilities are device nodes.
pub(crate) trait CapabilityNodes {
    /// Returns the node of the capability with the procfs file `access`; None if it cannot be determined.
    fn node(&self, access: &HostPath) -> Option<HostPath>;

    /// Returns the nodes of all capabilities of each GPU; None if capabilities are not device nodes.
    ///
    /// # Errors
    /// If the driver's table of them cannot be read.
    fn nodes_of_gpus(&self, minors: &[u32]) -> Result<Option<Vec<Vec<HostPath>>>>;
}

impl CapabilityNodes for DriverSession {
    fn node(&self, access: &HostPath) -> Option<HostPath> {
        // Upstream silently omits nodes that it cannot determine.
        let node = self.capability_node(access).ok().flatten();
        node.map(|node| node.path)
    }

    fn nodes_of_gpus(&self, minors: &[u32]) -> Result<Option<Vec<Vec<HostPath>>>> {
        let paths = |nodes: Vec<DeviceNode>| nodes.into_iter().map(|node| node.path).collect();
        let of_gpus = self.capabilities().of_gpus(minors)?;
        Ok(of_gpus.map(|of_gpus| of_gpus.into_iter().map(paths).collect()))
    }
}

/// The output of `list`. Sections that were not requested are absent.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Listing {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) imex_channels: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mig_config: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mig_monitor: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binaries: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) libraries: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) libraries32: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ipcs: Option<Vec<HostPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) firmwares: Option<Vec<HostPath>>,
}

impl Listing {
    /// Collects the requested sections.
    pub(crate) fn collect(
        wanted: &List,
        driver: &DriverInfo,
        choice: &Choice<'_>,
        nodes: &impl CapabilityNodes,
    ) -> Result<Self, CommandError> {
        let mig = |selection: &MigSelection<'_>, capability| -> Result<_> {
            (!selection.gpus.is_empty())
                .then(|| mig_files(selection, capability, nodes))
                .transpose()
        };
        let of_class = |wanted: bool, class| wanted.then(|| paths(driver.of_class(class)));
        let libraries = |wanted: bool, abi| wanted.then(|| paths(driver.libraries(abi)));
        let channels = &wanted.devices.imex_channels;
        Ok(Self {
            devices: wanted
                .lists_devices
                .then(|| device_nodes(driver, choice, nodes)),
            imex_channels: (!channels.is_empty()).then(|| imex_nodes(channels)),
            mig_config: mig(&choice.mig_config, "config").category(category::MIG_CONFIG)?,
            mig_monitor: mig(&choice.mig_monitor, "monitor").category(category::MIG_MONITOR)?,
            binaries: of_class(wanted.binaries, FileClass::Program),
            libraries: libraries(wanted.libraries, Abi::Native),
            libraries32: libraries(wanted.libraries && wanted.compat32, Abi::Compat32),
            ipcs: of_class(wanted.ipcs, FileClass::Socket),
            firmwares: of_class(wanted.firmwares, FileClass::Firmware),
        })
    }

    /// Iterates over all paths in output order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &HostPath> {
        let sections = [
            &self.devices,
            &self.imex_channels,
            &self.mig_config,
            &self.mig_monitor,
            &self.binaries,
            &self.libraries,
            &self.libraries32,
            &self.ipcs,
            &self.firmwares,
        ];
        sections.into_iter().flatten().flatten()
    }
}

fn paths<'a>(files: impl Iterator<Item = &'a DriverFile>) -> Vec<HostPath> {
    files.map(|file| file.path.clone()).collect()
}

fn device_nodes(
    driver: &DriverInfo,
    choice: &Choice<'_>,
    nodes: &impl CapabilityNodes,
) -> Vec<HostPath> {
    let selection = &choice.selection;
    let shared = driver.devices.iter().map(|device| &device.node);
    let gpus = selection.gpus.iter().filter_map(|gpu| gpu.node.as_ref());
    let mut paths: Vec<HostPath> = shared.chain(gpus).map(|node| node.path.clone()).collect();
    // The right to manage MIG covers all MIG devices.
    if !choice.mig_config.all && !choice.mig_monitor.all {
        let migs = selection.migs.iter();
        paths.extend(migs.flat_map(|(_, mig)| mig_device_files(mig, nodes)));
    }
    paths
}

/// Returns the files that give access to one MIG device, then their device nodes, if any.
fn mig_device_files(mig: &MigDevice, nodes: &impl CapabilityNodes) -> Vec<HostPath> {
    let files = [&mig.gi_caps_path, &mig.ci_caps_path].map(|dir| dir.join("access"));
    let nodes: Vec<HostPath> = files.iter().filter_map(|file| nodes.node(file)).collect();
    files.into_iter().chain(nodes).collect()
}

fn imex_nodes(channels: &[u32]) -> Vec<HostPath> {
    let names = channels
        .iter()
        .map(|n| format!("{IMEX_DIRECTORY}/channel{n}"));
    names.map(HostPath::new).collect()
}

/// Returns everything needed to manage MIG on the chosen GPUs: the global capability, and all files of each GPU.
fn mig_files(
    selection: &MigSelection<'_>,
    capability: &str,
    nodes: &impl CapabilityNodes,
) -> Result<Vec<HostPath>> {
    let file = HostPath::new(format!("{CAPABILITIES}/mig/{capability}"));
    let node = nodes.node(&file);
    let mut paths = vec![file];
    paths.extend(node);
    let minors: Vec<u32> = selection.gpus.iter().map(|gpu| gpu.minor).collect();
    let mut of_gpus = nodes.nodes_of_gpus(&minors)?.map(Vec::into_iter);
    for gpu in &selection.gpus {
        paths.extend(gpu.mig_caps_path.clone());
        if let Some(of_gpus) = &mut of_gpus {
            paths.push(HostPath::new(CAPABILITY_DIRECTORY));
            paths.extend(of_gpus.next().unwrap_or_default());
        }
    }
    Ok(paths)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::ErrorKind;
    use libnvc::host::{DeviceInfo, DeviceRole, DriverVersions, Gpu, SharedDevice};
    use libnvc::options::DriverOptions;
    use libnvc::request::DeviceRequest;

    use super::*;
    use crate::request::Format;

    /// Returns a smaller version of the machine on which upstream was recorded.
    fn machine() -> (DriverInfo, DeviceInfo) {
        let shared = |role: DeviceRole, minor| SharedDevice {
            node: DeviceNode::new(role.path(), 195, minor),
            role,
        };
        let file = |path: &str, class, abi| DriverFile {
            abi,
            ..DriverFile::new(HostPath::new(path), class)
        };
        let library = |path: &str, abi| file(path, FileClass::Library, abi);
        let native = |path: &str, class| file(path, class, Abi::Native);
        let driver = DriverInfo {
            versions: DriverVersions {
                driver: "535.261.03".to_owned(),
                cuda: "12.2".to_owned(),
            },
            files: vec![
                native("/usr/bin/nvidia-smi", FileClass::Program),
                library("/usr/lib/libcuda.so.535.261.03", Abi::Native),
                library("/usr/lib32/libcuda.so.535.261.03", Abi::Compat32),
                native(
                    "/lib/firmware/nvidia/535.261.03/gsp_tu10x.bin",
                    FileClass::Firmware,
                ),
                native("/tmp/nvidia-mps", FileClass::Socket),
            ],
            devices: vec![
                shared(DeviceRole::Control, 255),
                shared(DeviceRole::Modeset, 254),
            ],
            ..DriverInfo::default()
        };
        let devices = DeviceInfo {
            gpus: gpus(),
            failed: Vec::new(),
            ..DeviceInfo::default()
        };
        (driver, devices)
    }

    /// Returns two GPUs; the second has two MIG devices.
    fn gpus() -> Vec<Gpu> {
        let gpu = |index: u32| Gpu {
            index,
            minor: index,
            node: Some(DeviceNode::new(format!("/dev/nvidia{index}"), 195, index)),
            mig_capable: index == 1,
            mig_caps_path: Some(HostPath::new(format!("{CAPABILITIES}/gpu{index}"))),
            ..Gpu::default()
        };
        let mig = |index| {
            let gi = format!("{CAPABILITIES}/gpu1/mig/gi{}", index + 1);
            MigDevice {
                index,
                uuid: String::new(),
                gi: index + 1,
                ci: 0,
                gi_caps_path: HostPath::new(&gi),
                ci_caps_path: HostPath::new(format!("{gi}/ci0")),
                graphics: None,
            }
        };
        let mut gpus = vec![gpu(0), gpu(1)];
        gpus[1].mig_devices = (0..2).map(mig).collect();
        gpus
    }

    /// True if capabilities are device nodes.
    struct Nodes(bool);

    impl CapabilityNodes for Nodes {
        fn node(&self, access: &HostPath) -> Option<HostPath> {
            let number = match access.as_path().strip_prefix(CAPABILITIES).ok()?.to_str()? {
                "mig/config" => 1,
                "mig/monitor" => 2,
                "gpu1/mig/gi1/access" => 138,
                "gpu1/mig/gi1/ci0/access" => 139,
                _ => return None,
            };
            self.0
                .then(|| HostPath::new(format!("{CAPABILITY_DIRECTORY}/nvidia-cap{number}")))
        }

        fn nodes_of_gpus(&self, minors: &[u32]) -> Result<Option<Vec<Vec<HostPath>>>> {
            assert!(minors.iter().all(|minor| *minor == 1), "{minors:?}");
            let nodes = [138, 139].map(|n| format!("{CAPABILITY_DIRECTORY}/nvidia-cap{n}"));
            let nodes: Vec<_> = nodes.iter().map(HostPath::new).collect();
            Ok(self.0.then(|| vec![nodes; minors.len()]))
        }
    }

    fn wanted(ids: Option<&str>, mig_config: &str) -> List {
        let names = |list: &str| libnvc::request::names(list).map(String::from).collect();
        List {
            devices: DeviceRequest {
                ids: names(ids.unwrap_or_default()),
                mig_config: names(mig_config),
                ..DeviceRequest::default()
            },
            lists_devices: ids.is_some(),
            libraries: false,
            compat32: false,
            binaries: false,
            ipcs: false,
            firmwares: false,
            driver_options: DriverOptions::empty(),
            format: Format::Text,
        }
    }

    fn lines(wanted: &List, nodes: &impl CapabilityNodes) -> Vec<String> {
        let (driver, devices) = machine();
        let choice = Choice::make(&devices, &wanted.devices).unwrap();
        let listing = Listing::collect(wanted, &driver, &choice, nodes).unwrap();
        listing.paths().map(ToString::to_string).collect()
    }

    #[test]
    fn everything_in_order() {
        let mut list = wanted(Some("all"), "");
        list.devices.imex_channels = vec![7];
        list.libraries = true;
        list.compat32 = true;
        list.binaries = true;
        list.ipcs = true;
        list.firmwares = true;
        assert_eq!(
            lines(&list, &Nodes(true)),
            [
                "/dev/nvidiactl",
                "/dev/nvidia-modeset",
                "/dev/nvidia0",
                "/dev/nvidia1",
                "/proc/driver/nvidia/capabilities/gpu1/mig/gi1/access",
                "/proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access",
                "/dev/nvidia-caps/nvidia-cap138",
                "/dev/nvidia-caps/nvidia-cap139",
                // its nodes cannot be determined
                "/proc/driver/nvidia/capabilities/gpu1/mig/gi2/access",
                "/proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access",
                "/dev/nvidia-caps-imex-channels/channel7",
                "/usr/bin/nvidia-smi",
                "/usr/lib/libcuda.so.535.261.03",
                "/usr/lib32/libcuda.so.535.261.03",
                "/tmp/nvidia-mps",
                "/lib/firmware/nvidia/535.261.03/gsp_tu10x.bin",
            ]
        );
    }

    #[test]
    fn managing_mig_replaces_single_devices() {
        let mut list = wanted(Some("1,0"), "all");
        list.devices.mig_monitor = vec!["all".to_owned()];
        assert_eq!(
            lines(&list, &Nodes(true)),
            [
                "/dev/nvidiactl",
                "/dev/nvidia-modeset",
                "/dev/nvidia1",
                "/dev/nvidia0",
                "/proc/driver/nvidia/capabilities/mig/config",
                "/dev/nvidia-caps/nvidia-cap1",
                "/proc/driver/nvidia/capabilities/gpu1",
                "/dev/nvidia-caps",
                "/dev/nvidia-caps/nvidia-cap138",
                "/dev/nvidia-caps/nvidia-cap139",
                "/proc/driver/nvidia/capabilities/mig/monitor",
                "/dev/nvidia-caps/nvidia-cap2",
                "/proc/driver/nvidia/capabilities/gpu1",
                "/dev/nvidia-caps",
                "/dev/nvidia-caps/nvidia-cap138",
                "/dev/nvidia-caps/nvidia-cap139",
            ]
        );
        let tail = &lines(&wanted(Some("all"), "all"), &Nodes(false))[4..];
        assert_eq!(
            tail,
            [
                "/proc/driver/nvidia/capabilities/mig/config",
                "/proc/driver/nvidia/capabilities/gpu1"
            ]
        );
    }

    #[test]
    fn sections_appear_if_asked_for() {
        assert!(lines(&wanted(None, ""), &Nodes(true)).is_empty());
        // an empty selection still means the driver's own devices
        assert_eq!(lines(&wanted(Some(","), "all"), &Nodes(true)).len(), 2);
        let mut list = wanted(None, "");
        list.compat32 = true;
        assert!(lines(&list, &Nodes(true)).is_empty());
    }

    #[test]
    fn unreadable_table_is_an_error() {
        struct Broken;
        impl CapabilityNodes for Broken {
            fn node(&self, _: &HostPath) -> Option<HostPath> {
                None
            }
            fn nodes_of_gpus(&self, _: &[u32]) -> Result<Option<Vec<Vec<HostPath>>>> {
                Err(libnvc::Error::new(ErrorKind::System, "no table"))
            }
        }
        let list = wanted(Some("all"), "all");
        let (driver, devices) = machine();
        let choice = Choice::make(&devices, &list.devices).unwrap();
        let failure = Listing::collect(&list, &driver, &choice, &Broken).unwrap_err();
        assert_eq!(failure.lines("cli"), ["cli: mig-config error: no table"]);
    }
}
