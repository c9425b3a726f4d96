//! Finds the nodes of a Jetson's chosen GPUs.
//!
//! The lists name the nodes of the integrated GPU, those of other parts of the SoC, and maybe the discrete GPU's. If the
//! machine has two GPUs, a container with one of them gets no node of the other: not by its usual name, and not by
//! another name with the same number.

use std::path::Path;

use libnvc::host::{
    DeviceNumber, DeviceRole, DriverRoot, Gpu, ListedGpu, NVIDIA_MAJOR, discrete_gpus, drm,
};
use libnvc::plan::{Intent, What};
use libnvc::{ContainerPath, Error, ErrorKind, Result};
use nvc_cdi::nodes::HostNode;

use super::choice::ChosenGpu;
use super::files::{Tree, link};
use super::list::Entry;
use crate::content::sort;

/// The node that the lists have for a discrete GPU.
const OF_DISCRETE: &str = "/dev/nvidia1";

/// The directory of capabilities, which only discrete GPUs have.
const CAPABILITIES: &str = "/dev/nvidia-caps/";

/// The integrated GPU's display, which the lists lack.
const DISPLAY: &str = "/dev/nvidia2";

/// Minor numbers of the driver's control nodes start here.
const FIRST_CONTROL: u64 = 254;

impl Tree {
    /// Returns the nodes of a GPU, among all that NVML lists. Warns about nodes missing on the host.
    ///
    /// # Errors
    /// The discrete GPU's own node or the driver's control node is missing.
    pub(super) fn device(
        &self,
        entries: &[Entry],
        chosen: &ChosenGpu,
        listed: &[ListedGpu],
    ) -> Result<(Vec<Intent>, Vec<String>)> {
        match chosen {
            ChosenGpu::Only => Ok(self.listed_nodes(entries, &|_, _| true)),
            ChosenGpu::OfLists => {
                let mut others = Others::new(self);
                others.add_of_module(self);
                Ok(self.listed_nodes(entries, &|path, node| !others.have(path, node)))
            }
            ChosenGpu::Integrated { .. } => {
                let others = Others::of(listed, self);
                let (mut nodes, warnings) =
                    self.listed_nodes(entries, &|path, node| !others.have(path, node));
                let display = self.nodes.look_up(DISPLAY);
                let is_other = display.is_ok_and(|node| others.have(DISPLAY, &node));
                let is_there = nodes.iter().any(|node| is_at(node, DISPLAY));
                if !is_other && !others.unknown && !is_there {
                    // Not every machine has it.
                    nodes.extend(self.nodes.device(DISPLAY));
                    sort(&mut nodes);
                }
                Ok((nodes, warnings))
            }
            ChosenGpu::Discrete(gpu) => self.discrete(entries, gpu),
        }
    }

    /// Returns the nodes of the discrete GPU: its own, the driver's, and those of the SoC that are not the integrated
    /// GPU's.
    fn discrete(&self, entries: &[Entry], gpu: &Gpu) -> Result<(Vec<Intent>, Vec<String>)> {
        let (mut nodes, mut warnings) =
            self.listed_nodes(entries, &|path, node| !is_of_some_gpu(path, node));
        let own = format!("/dev/nvidia{}", gpu.minor);
        for (path, is_needed) in [
            (own.as_str(), true),
            (DeviceRole::Control.path(), true),
            (DeviceRole::Modeset.path(), false),
            (DeviceRole::Uvm.path(), false),
            (DeviceRole::UvmTools.path(), false),
        ] {
            match self.nodes.device(path) {
                Ok(node) => nodes.push(node),
                Err(why) if is_needed => {
                    let text = format!("GPU {}: {why}", gpu.index);
                    let hint = if path == own {
                        format!("nvidia-modprobe -c {} makes it", gpu.minor)
                    } else {
                        "nvidia-ctk system create-device-nodes --control-devices makes it".into()
                    };
                    return Err(Error::new(ErrorKind::NotFound, text).hint(hint));
                }
                Err(error) => warnings.push(error.message()),
            }
        }
        let root = DriverRoot::open(&self.nodes.root)?;
        let displays = drm::displays(&gpu.busid, &root, &self.nodes.drivers);
        warnings.extend(displays.missing);
        for node in &displays.nodes {
            // A node that vanishes concurrently is not the GPU's any more.
            nodes.extend(self.nodes.device(&node.path.to_string()));
        }
        super::once(&mut nodes);
        sort(&mut nodes);
        let links = displays.links.into_iter();
        nodes.extend(links.map(|found| link(found.target, ContainerPath::from(&found.at))));
        Ok((nodes, warnings))
    }
}

fn is_at(node: &Intent, path: &str) -> bool {
    matches!(&node.what, What::Device(device) if device.at.as_path() == Path::new(path))
}

/// The discrete GPUs of the machine, whose nodes a container with the integrated one does not get.
#[derive(Debug, Default)]
struct Others {
    minors: Vec<u64>,
    displays: Vec<DeviceNumber>,
    /// The root with the nodes; None if it cannot be opened.
    root: Option<DriverRoot>,
    /// Some nodes are a discrete GPU's by their names.
    by_name: bool,
    /// NVML does not report all minor numbers.
    unknown: bool,
}

impl Others {
    fn new(tree: &Tree) -> Self {
        Self {
            root: DriverRoot::open(&tree.nodes.root).ok(),
            ..Self::default()
        }
    }

    /// Collects the GPUs that NVML reports, and from the kernel module those that NVML fails on.
    fn of(listed: &[ListedGpu], tree: &Tree) -> Self {
        let mut others = Self {
            by_name: true,
            ..Self::new(tree)
        };
        for gpu in listed.iter().filter(|gpu| gpu.integrated != Some(true)) {
            match &gpu.gpu {
                Ok(gpu) => others.add(gpu.minor, &gpu.busid, tree),
                Err(_) => others.unknown = true,
            }
        }
        if others.unknown {
            others.add_of_module(tree);
        }
        others
    }

    /// Adds the GPUs that the kernel module lists, except for one with the first minor number: the lists have its node
    /// for the integrated GPU.
    fn add_of_module(&mut self, tree: &Tree) {
        let gpus = discrete_gpus(&tree.root);
        for gpu in &gpus {
            if let Some(minor @ 1..) = gpu.minor {
                self.add(minor, &gpu.busid, tree);
            }
        }
    }

    fn add(&mut self, minor: u32, busid: &str, tree: &Tree) {
        self.minors.push(minor.into());
        if let Some(root) = &self.root {
            let nodes = drm::displays(busid, root, &tree.nodes.drivers)
                .nodes
                .into_iter();
            self.displays.extend(nodes.map(|node| node.number));
        }
    }

    /// Returns true if a node is that of a discrete GPU.
    fn have(&self, path: &str, node: &HostNode) -> bool {
        let is = |major: u32, minor: u64| node.major == u64::from(major) && node.minor == minor;
        self.by_name && (path == OF_DISCRETE || path.starts_with(CAPABILITIES))
            || self
                .displays
                .iter()
                .any(|display| is(display.major, display.minor.into()))
            || self
                .minors
                .iter()
                .any(|minor| path == format!("/dev/nvidia{minor}") || is(NVIDIA_MAJOR, *minor))
    }
}

/// Returns true for nodes that a list may have for the integrated GPU, or for any GPU by number, and for those that
/// every discrete GPU gets from the driver.
fn is_of_some_gpu(path: &str, node: &HostNode) -> bool {
    let name = path.strip_prefix("/dev/").unwrap_or(path);
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_gpus = node.major == u64::from(NVIDIA_MAJOR) && node.minor < FIRST_CONTROL;
    is_numbered
        || is_gpus
        || [
            DeviceRole::Control,
            DeviceRole::Modeset,
            DeviceRole::Uvm,
            DeviceRole::UvmTools,
        ]
        .into_iter()
        .any(|role| role.path() == path)
        // The integrated GPU's driver has two sets of names.
        || name.starts_with("nvgpu/")
        || name.starts_with("nvhost") && name.ends_with("gpu")
        || name.starts_with("dri/")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::host::CharDrivers;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::super::choice::tests::{discrete, integrated};
    use super::super::list::parse;
    use super::*;
    use crate::nodes::Nodes;

    /// Nodes of a machine with two GPUs, and their numbers.
    const NODES: [(&str, u64, u64); 14] = [
        ("nvidia0", 195, 0),
        ("nvidia1", 195, 1),
        ("nvidia2", 195, 2),
        ("other-name", 195, 1),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm", 511, 0),
        ("nvidia-uvm-tools", 511, 1),
        ("nvmap", 10, 60),
        ("nvhost-ctrl", 505, 0),
        ("nvhost-as-gpu", 502, 1),
        ("nvgpu/igpu0/ctrl", 500, 1),
        ("dri/card0", 226, 0),
        ("nvidia-caps/nvidia-cap1", 508, 1),
    ];

    /// Creates the nodes.
    fn tree(dir: &Path) -> Tree {
        for (name, major, minor) in NODES {
            let path = dir.join("dev").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let number = makedev(major, minor);
            mknod(
                &path,
                SFlag::S_IFCHR,
                Mode::from_bits_truncate(0o666),
                number,
            )
            .unwrap();
        }
        Tree {
            root: DriverRoot::open(dir).unwrap(),
            nodes: Nodes {
                root: dir.into(),
                drivers: CharDrivers::of(
                    "Character devices:\n195 nvidia\n508 nvidia-caps\n511 nvidia-uvm\n",
                    "",
                ),
            },
            compat: None,
        }
    }

    const LIST: &str = "dev, /dev/nvidia*\ndev, /dev//./other-name\ndev, /dev/nvmap\ndev, /dev/nvhost-*\n\
                        dev, /dev/nvgpu/*/*\ndev, /dev/dri/*\ndev, /dev/nvidia-caps/*\n";

    fn names(tree: &Tree, list: &str, chosen: &ChosenGpu, listed: &[ListedGpu]) -> String {
        let (nodes, _) = tree.device(&parse(list), chosen, listed).unwrap();
        let name = |node: &Intent| match &node.what {
            What::Device(device) => device.at.to_string()["/dev/".len()..].to_owned(),
            _ => String::new(),
        };
        let names: Vec<String> = nodes.iter().map(name).collect();
        names.join(" ")
    }

    fn one() -> ChosenGpu {
        ChosenGpu::Integrated {
            uuid: String::new(),
        }
    }

    fn other(minor: u32) -> (ChosenGpu, ListedGpu) {
        let listed = discrete(1, minor);
        let chosen = ChosenGpu::Discrete(Box::new(listed.gpu.clone().unwrap()));
        (chosen, listed)
    }

    #[test]
    #[ignore = "needs root"]
    fn no_gpu_gets_a_node_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let (second, listed) = other(1);
        let listed = [integrated(0), listed];
        assert_eq!(
            names(&tree, LIST, &one(), &listed),
            "nvhost-as-gpu nvhost-ctrl nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia0 nvidia2 nvidiactl nvmap \
             dri/card0 nvgpu/igpu0/ctrl"
        );
        assert_eq!(
            names(&tree, LIST, &second, &listed),
            "nvhost-ctrl nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl nvmap nvidia-caps/nvidia-cap1"
        );
        let all = names(&tree, LIST, &ChosenGpu::Only, &listed);
        assert_eq!(all.split(' ').count(), NODES.len(), "{all}");
    }

    #[test]
    #[ignore = "needs root"]
    fn the_drivers_numbers_decide_over_names() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let list = "dev, /dev/nvidia0\ndev, /dev/nvidia1\ndev, /dev/nvmap\n";
        for (minor, integrated_gets) in [
            (0, "nvidia2 nvmap"),
            (1, "nvidia0 nvidia2 nvmap"),
            (2, "nvidia0 nvmap"),
        ] {
            let (second, listed) = other(minor);
            let listed = [integrated(0), listed];
            assert_eq!(
                names(&tree, list, &one(), &listed),
                integrated_gets,
                "{minor}"
            );
            let expected =
                format!("nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia{minor} nvidiactl nvmap");
            assert_eq!(names(&tree, list, &second, &listed), expected);
        }
        // A lost GPU's number may be any: nothing is added to the lists.
        let (_, mut lost) = other(1);
        lost.gpu = Err(Error::new(
            ErrorKind::DriverFailed,
            "nvml error: gpu is lost",
        ));
        assert_eq!(
            names(&tree, list, &one(), &[integrated(0), lost]),
            "nvidia0 nvmap"
        );
    }

    #[test]
    #[ignore = "needs root"]
    fn the_kernel_module_knows_gpus_that_nvml_fails_on() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        for (busid, minor) in [
            ("0000:01:00.0", 2),
            ("0005:09:00.0", 1),
            ("0006:09:00.0", 0),
        ] {
            let at = dir.path().join("proc/driver/nvidia/gpus").join(busid);
            std::fs::create_dir_all(&at).unwrap();
            let text = format!("Bus Type: \t PCIe\nDevice Minor: \t {minor}\n");
            std::fs::write(at.join("information"), text).unwrap();
        }
        let list = "dev, /dev/nvidia?\ndev, /dev/other-name\ndev, /dev/nvmap\n";
        let (_, mut lost) = other(1);
        lost.gpu = Err(Error::new(
            ErrorKind::DriverFailed,
            "nvml error: gpu is lost",
        ));
        for (chosen, listed) in [
            (one(), vec![integrated(0), lost]),
            (ChosenGpu::OfLists, vec![]),
        ] {
            assert_eq!(
                names(&tree, list, &chosen, &listed),
                "nvidia0 nvidia2 nvmap"
            );
        }
        assert_eq!(
            names(&tree, list, &ChosenGpu::Only, &[]),
            "nvidia0 nvidia1 nvidia2 nvmap other-name"
        );
    }

    #[test]
    #[ignore = "needs root"]
    fn a_discrete_gpu_without_its_node_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let (second, listed) = other(7);
        let error = tree.device(&[], &second, &[listed]).unwrap_err();
        assert_eq!(error.message(), "GPU 1: /dev/nvidia7 is missing");
    }
}
