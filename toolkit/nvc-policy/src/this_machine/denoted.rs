//! Finds the GPUs and MIG devices that a device of a specification denotes: by the numbers of all its nodes, since these
//! are what a container gets. The names of the device and of its nodes do not count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use libnvc::host::{Gpu, MigDevice, NVIDIA_MAJOR, drm};
use nvc_cdi::nodes;
use nvc_cdi::{CHARACTER, DeviceNode};

use crate::image::{Denoted, NodeNumber};

/// First minor number of the nodes that all GPUs share: of nvidia-modeset and nvidiactl.
const SHARED: u64 = 254;

/// Major number of displays.
const DRM_MAJOR: u64 = 226;

/// The nodes of one device, without those that all GPUs share.
#[derive(Debug, Default)]
struct DeviceNumbers {
    all: BTreeSet<NodeNumber>,
    gpus: BTreeSet<u64>,
    displays: BTreeSet<u64>,
    capabilities: BTreeSet<u64>,
    has_others: bool,
}

/// Returns the GPUs and MIG devices to which exactly these nodes give access. `access` returns the minor numbers of a
/// MIG device's capabilities.
///
/// With nodes of anything else, all of them are the device. An unknown node or GPU, and a device without nodes, denote
/// nothing.
pub(super) fn denoted<'a>(
    nodes: impl Iterator<Item = &'a DeviceNode>,
    gpus: &[Gpu],
    access: impl Fn(&Gpu, &MigDevice) -> Option<[u32; 2]>,
) -> Denoted {
    let Some(sorted) = sort(nodes) else {
        return Denoted::Unknown;
    };
    let mut named = Vec::new();
    for minor in &sorted.gpus {
        match gpus.iter().find(|gpu| u64::from(gpu.minor) == *minor) {
            Some(gpu) => named.push(gpu),
            None => return Denoted::Unknown,
        }
    }
    match sorted.uuids(&named, access, address) {
        Some(uuids) => Denoted::gpus(uuids),
        None => Denoted::Nodes(sorted.all),
    }
}

impl DeviceNumbers {
    /// Returns the UUIDs; None if there are nodes of anything else.
    fn uuids(
        &self,
        gpus: &[&Gpu],
        access: impl Fn(&Gpu, &MigDevice) -> Option<[u32; 2]>,
        address: impl Fn(u64) -> Option<String>,
    ) -> Option<Vec<String>> {
        // The PCI addresses of GPUs whose displays belong to what is denoted.
        let (mut uuids, mut shown) = (Vec::new(), Vec::new());
        let mut used = BTreeSet::new();
        for gpu in gpus {
            let before = uuids.len();
            for mig in &gpu.mig_devices {
                let Some(minors) = access(gpu, mig).map(|minors| minors.map(u64::from)) else {
                    continue;
                };
                if minors.iter().all(|minor| self.capabilities.contains(minor)) {
                    uuids.push(mig.uuid.clone());
                    used.extend(minors);
                    if mig.graphics == Some(true) {
                        shown.push(drm::address(&gpu.busid));
                    }
                }
            }
            // The GPU of a MIG device is not the one that the nodes denote.
            if uuids.len() == before {
                uuids.push(gpu.uuid.clone());
                shown.push(drm::address(&gpu.busid));
            }
        }
        let is_shown = |minor: &u64| address(*minor).is_some_and(|found| shown.contains(&found));
        let is_exact =
            used == self.capabilities && !self.has_others && self.displays.iter().all(is_shown);
        is_exact.then_some(uuids)
    }
}

/// Sorts nodes by their numbers; None if one of them is unknown.
fn sort<'a>(nodes: impl Iterator<Item = &'a DeviceNode>) -> Option<DeviceNumbers> {
    let mut sorted = DeviceNumbers::default();
    for node in nodes {
        let number = number(node)?;
        let (kind, major, minor) = &number;
        // A node is given only if it is what such a name says.
        let named = nodes::known_name(node).unwrap_or_default();
        let is_named = |what: &str| named.contains(what);
        match (kind.as_str(), *major, *minor) {
            (CHARACTER, major, SHARED..) if major == u64::from(NVIDIA_MAJOR) => continue,
            (CHARACTER, major, minor) if major == u64::from(NVIDIA_MAJOR) => {
                sorted.gpus.insert(minor);
            }
            (CHARACTER, DRM_MAJOR, minor) => {
                sorted.displays.insert(minor);
            }
            (CHARACTER, ..) if is_named("/dev/nvidia-uvm") => continue,
            (CHARACTER, _, minor) if is_named("/dev/nvidia-caps/") => {
                sorted.capabilities.insert(minor);
            }
            _ => sorted.has_others = true,
        }
        sorted.all.insert(number);
    }
    Some(sorted)
}

/// Returns the number of a node as a container gets it: the recorded one, or else the host's.
fn number(node: &DeviceNode) -> Option<NodeNumber> {
    if node.major != 0 {
        let kind = match node.kind.as_str() {
            "" | "u" => CHARACTER,
            other => other,
        };
        let [major, minor] = [node.major, node.minor].map(u64::try_from);
        return Some((kind.to_owned(), major.ok()?, minor.ok()?));
    }
    let found = nodes::look_up(Path::new(node.on_host())).ok()?;
    Some((found.kind.to_string(), found.major, found.minor))
}

/// Returns the PCI address of a display.
fn address(minor: u64) -> Option<String> {
    let link = PathBuf::from(format!("/sys/dev/char/{DRM_MAJOR}:{minor}/device"));
    let target = std::fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use libnvc::HostPath;

    use super::*;

    /// A container with such a MIG device gets its GPU's displays; with another, they are more than the device.
    #[test]
    fn displays_belong_to_mig_devices_for_graphics() {
        let mig = |index: u32, graphics| MigDevice {
            index,
            uuid: format!("MIG-{index}"),
            gi: index,
            ci: 0,
            gi_caps_path: HostPath::new("gi"),
            ci_caps_path: HostPath::new("ci"),
            graphics,
        };
        let gpu = Gpu {
            busid: "00000000:17:00.0".into(),
            mig_devices: [Some(true), Some(false), None]
                .into_iter()
                .zip(0..)
                .map(|(graphics, index)| mig(index, graphics))
                .collect(),
            ..Gpu::default()
        };
        let uuids = |migs: &[u32], place: &str| {
            let sorted = DeviceNumbers {
                gpus: [0].into(),
                displays: [128].into(),
                capabilities: migs.iter().flat_map(|mig| capabilities(*mig)).collect(),
                ..DeviceNumbers::default()
            };
            let access = |_: &Gpu, mig: &MigDevice| Some([2 * mig.index, 2 * mig.index + 1]);
            sorted.uuids(&[&gpu], access, |_| Some(place.to_owned()))
        };
        let given = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        assert_eq!(uuids(&[0], "0000:17:00.0"), given(&["MIG-0"]));
        assert_eq!(uuids(&[0, 1], "0000:17:00.0"), given(&["MIG-0", "MIG-1"]));
        assert_eq!(uuids(&[], "0000:17:00.0"), given(&[""]));
        for (migs, place) in [
            (&[0][..], "0000:18:00.0"),
            (&[1], "0000:17:00.0"),
            (&[2], "0000:17:00.0"),
        ] {
            assert_eq!(uuids(migs, place), None, "{migs:?} {place}");
        }
    }

    fn capabilities(mig: u32) -> [u64; 2] {
        [2 * mig, 2 * mig + 1].map(u64::from)
    }
}
