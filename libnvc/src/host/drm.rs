//! Finds a GPU's DRM nodes (display and render), and the links that name them by PCI address.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{CharDrivers, DeviceNode, DriverRoot, HostLink, nodes};
use crate::path::HostPath;

/// The kernel's list of PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
const NODES: &str = "/dev/dri";

/// A GPU's nodes for displays and rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Displays {
    /// Existing nodes.
    pub nodes: Vec<DeviceNode>,
    /// Links to those by the GPU's address.
    pub links: Vec<HostLink>,
    /// Why nodes that the kernel lists are missing.
    pub missing: Vec<String>,
}

/// Returns the nodes of the GPU at a PCI address. The kernel lists their names there, and their numbers follow from these.
pub fn displays(busid: &str, dev_root: &DriverRoot, drivers: &CharDrivers) -> Displays {
    let address = address(busid);
    let mut found = Displays::default();
    for name in names(&Path::new(PCI).join(&address).join("drm")) {
        let path = HostPath::new(NODES).join(&name);
        match nodes::at(dev_root, &path, drivers) {
            Ok(node) => found.nodes.push(node),
            Err(error) => found.missing.push(error.message()),
        }
    }
    for what in ["card", "render"] {
        let at = HostPath::new(NODES)
            .join("by-path")
            .join(format!("pci-{address}-{what}"));
        if let Ok(target) = link_text(dev_root, &at)
            && leads_to_one_of(&target, &found.nodes)
        {
            found.links.push(HostLink { at, target });
        }
    }
    found
}

/// Returns a GPU's PCI address in the kernel's form: the domain has four digits unless it needs more.
pub fn address(busid: &str) -> String {
    let short = busid.strip_prefix("0000").filter(|rest| rest.len() == 12);
    short.unwrap_or(busid).to_ascii_lowercase()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("card") || name.starts_with("renderD"))
        .collect();
    names.sort();
    names
}

fn link_text(root: &DriverRoot, path: &HostPath) -> Result<PathBuf, Errno> {
    let directory = root.resolve_directory(&path.parent())?;
    nix::fcntl::readlinkat(directory, path.file_name()).map(PathBuf::from)
}

/// Returns true if a link in the directory `by-path` leads to one of the nodes: each is in the directory above.
fn leads_to_one_of(target: &Path, nodes: &[DeviceNode]) -> bool {
    let name = target
        .strip_prefix("..")
        .or_else(|_| target.strip_prefix(NODES));
    name.is_ok_and(|name| nodes.iter().any(|node| node.path.file_name() == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_gpus_own_nodes() {
        let nodes = [DeviceNode::new("/dev/dri/card1", 226, 1)];
        for (target, expected) in [
            ("../card1", true),
            ("/dev/dri/card1", true),
            ("../card0", false),
            ("card1", false),
            ("../../card1", false),
            ("../x/card1", false),
            ("/etc/card1", false),
        ] {
            assert_eq!(
                leads_to_one_of(Path::new(target), &nodes),
                expected,
                "{target}"
            );
        }
    }

    #[test]
    fn addresses_are_the_kernels() {
        assert_eq!(address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(address("00010000:af:00.0"), "00010000:af:00.0");
    }
}
