//! Loads the driver's kernel modules and creates its device nodes, inside the driver root (`load-kmods`).
//!
//! Runs before discovery on a host where nothing else has done so. A failure here is only a warning, because the driver
//! may work without the step. WSL2 has no modules and does not use this.
//!
//! The nodes of IMEX channels are different: an image can name channels, and their nodes stay. So they are planned
//! first (`new_channels`), and created after everything that can fail without them (`create_nodes`). The C library has
//! no such moment, because its caller has CAP_MKNOD only during nvc_init (`create_channels`).
//!
//! If PCI has GPUs, the kernel module's own list gives their minor numbers; without that list they are counted, as
//! upstream does. Nodes are created by descriptor; only modprobe itself runs in a changed root. All programs create
//! nodes and the links to them here.

#![forbid(unsafe_code)]

mod char_links;
mod mknod;
mod modprobe;
pub mod pci;

pub use char_links::CharLinks;

use std::path::Path;

use log::{debug, info, warn};
use nix::errno::Errno;

use crate::error::{Error, Result, errno_text};
use crate::host::{CONTROL_MINOR, MODESET_MINOR};
use crate::host::{
    DeviceNode, DeviceNumber, DriverConfig, DriverRoot, ImexChannels, NVIDIA_MAJOR, NodeOwner,
    in_user_namespace, majors, nvcaps, procfs, wsl,
};
use crate::kmods::mknod::{FOR_ALL, Nodes, owner_of_capability, owner_of_driver};
use crate::kmods::modprobe::Modules;
use crate::kmods::pci::GpuCount;
use crate::options::LibraryOptions;
use crate::path::HostPath;

const UVM: &str = "nvidia-uvm";
const IMEX: &str = "nvidia-caps-imex-channels";

/// Loads the modules and creates the nodes if the configuration asks for it, except those of IMEX channels. Returns a
/// warning if something fails.
///
/// Call this before opening a [`DriverSession`](crate::host::DriverSession). A driver root that cannot be opened is
/// ignored here; the session reports it.
pub fn prepare(config: &DriverConfig) -> Option<String> {
    if !is_wanted(config) {
        return None;
    }
    load(&DriverRoot::open(&config.root).ok()?)
}

fn is_wanted(config: &DriverConfig) -> bool {
    config.options.contains(LibraryOptions::LOAD_KMODS)
        && wsl::detect().is_ok_and(|stores| stores.is_empty())
}

/// Loads the modules and creates the nodes; returns a warning if something fails.
fn load(root: &DriverRoot) -> Option<String> {
    if in_user_namespace() {
        let text = "skipping kernel modules and device nodes: in a user namespace";
        return Some(text.into());
    }
    let mut loader = ModuleLoader::new(root);
    loader.run();
    loader.warning()
}

/// Creates or corrects the nodes of these IMEX channels, if the configuration asks for it. A failure is a warning: the
/// user of a node reports that it is missing.
pub fn create_channels(root: &DriverRoot, config: &DriverConfig, channels: &[u32]) {
    create_nodes(root, &new_channels(root, config, channels));
}

/// Returns the nodes that [`create_nodes`] shall create or correct: those of the channels that the driver has.
pub(crate) fn new_channels(
    root: &DriverRoot,
    config: &DriverConfig,
    channels: &[u32],
) -> Vec<DeviceNode> {
    let is_off = config
        .options
        .contains(LibraryOptions::NO_CREATE_IMEX_CHANNELS);
    if channels.is_empty() || is_off || !is_wanted(config) || in_user_namespace() {
        return Vec::new();
    }
    let known = ImexChannels::read(root);
    let Some(owner) = owner_of_driver(&procfs::text_of(root, "params")) else {
        return Vec::new();
    };
    let nodes: Vec<_> = channels
        .iter()
        .filter_map(|channel| known.node(*channel, owner))
        .collect();
    if nodes.is_empty() {
        info!("no {IMEX} in /proc/devices, or no such channel");
    }
    nodes
}

/// Creates or corrects planned nodes of IMEX channels.
pub(crate) fn create_nodes(root: &DriverRoot, nodes: &[DeviceNode]) {
    if nodes.is_empty() {
        return;
    }
    let mut loader = ModuleLoader::new(root);
    loader.channels(nodes);
    if let Some(warning) = loader.warning() {
        warn!("{warning}");
    }
}

/// Creates a control node in a root's /dev, with mode 0666. An existing file of that name is left alone; a link is not
/// followed.
///
/// # Errors
/// `mknod failed: <path>: <cause>`; the cause is `EEXIST` for a link to nothing.
pub fn create_node(root: &Path, name: &str, number: DeviceNumber) -> Result<()> {
    let failed = |errno| Error::file("mknod failed", root.join("dev").join(name), errno);
    let opened = DriverRoot::open(root);
    let opened = opened.map_err(|error| failed(error.errno().unwrap_or(Errno::ENOENT)))?;
    mknod::create(&opened, name, number).map_err(failed)
}

struct ModuleLoader<'r> {
    root: &'r DriverRoot,
    nodes: Nodes<'r>,
    gpus_on_pci: GpuCount,
    problems: Vec<String>,
}

impl<'r> ModuleLoader<'r> {
    fn new(root: &'r DriverRoot) -> Self {
        Self {
            root,
            nodes: Nodes::new(root),
            gpus_on_pci: GpuCount::default(),
            problems: Vec::new(),
        }
    }

    fn warning(&self) -> Option<String> {
        match &*self.problems {
            [] => None,
            [problem] => Some(problem.clone()),
            [first, others @ ..] => Some(format!("{first} (and {} more like it)", others.len())),
        }
    }

    fn run(&mut self) {
        let mut modules = Modules::default();
        if !self.loaded(&mut modules, "nvidia") {
            return; // the other modules need it
        }
        // The driver's major numbers are known only now.
        let devices = self.read(majors::PATH).unwrap_or_default();
        let major = |name| majors::major(devices.as_bytes(), name);
        let owner = owner_of_driver(&procfs::text_of(self.root, "params"));

        self.driver_node("nvidiactl", CONTROL_MINOR, owner);
        let gpus = self.gpu_minors();
        for minor in &gpus {
            self.driver_node(&format!("nvidia{minor}"), *minor, owner);
        }
        if let Some(major) = major("nvidia-caps") {
            self.capabilities(major, &gpus);
        }

        if self.loaded(&mut modules, UVM) {
            let devices = self.read(majors::PATH).unwrap_or_default();
            match majors::major(devices.as_bytes(), UVM) {
                Some(major) => {
                    self.node(UVM, DeviceNumber { major, minor: 0 }, Some(FOR_ALL));
                    let tools = DeviceNumber { major, minor: 1 };
                    self.node("nvidia-uvm-tools", tools, Some(FOR_ALL));
                }
                None => self.problem("no nvidia-uvm in /proc/devices".to_owned()),
            }
        }
        if self.loaded(&mut modules, "nvidia-modeset") {
            self.driver_node("nvidia-modeset", MODESET_MINOR, owner);
        }
    }

    fn loaded(&mut self, modules: &mut Modules, name: &str) -> bool {
        match modules.ensure(self.root, name, &self.gpus_on_pci) {
            Ok(()) => true,
            Err(why) => {
                self.problem(format!("cannot load kernel module {name}: {why}"));
                false
            }
        }
    }

    /// Returns the minor numbers of the GPUs.
    fn gpu_minors(&mut self) -> Vec<u32> {
        let gpus = procfs::gpus(self.root);
        // Looking for these GPUs is faster than looking at all devices on PCI.
        let all_exist = !gpus.is_empty() && gpus.iter().all(|gpu| pci::has(&gpu.busid));
        if !all_exist && self.gpus_on_pci.get().unwrap_or(0) == 0 {
            return Vec::new();
        }
        let minors: Vec<_> = gpus.iter().filter_map(|gpu| gpu.minor).collect();
        if minors.is_empty() {
            (0..self.gpus_on_pci.get().unwrap_or(0)).collect()
        } else {
            minors
        }
    }

    /// Creates the nodes of the existing capabilities: the global ones, and those of the instances of these GPUs.
    fn capabilities(&mut self, major: u32, gpus: &[u32]) {
        let top = HostPath::new(nvcaps::CAPABILITIES);
        let of_gpus = gpus.iter().map(|gpu| top.join(format!("gpu{gpu}")));
        let wanted: Vec<HostPath> = of_gpus.chain([top.join("mig")]).collect();
        let is_wanted = |file: &HostPath| {
            let mut above = wanted.iter();
            above.any(|above| file.as_path().starts_with(above.as_path()))
        };
        let files = nvcaps::texts(self.root).into_iter();
        let files = files.filter(|(file, _)| is_wanted(file));
        let found: Vec<_> = files
            .filter_map(|(_, text)| {
                let text = text?;
                Some((nvcaps::minor_of(&text)?, text))
            })
            .collect();
        if !found.is_empty() {
            self.directory("nvidia-caps");
        }
        for (minor, text) in found {
            let name = format!("nvidia-caps/nvidia-cap{minor}");
            let owner = owner_of_capability(&text);
            self.node(&name, DeviceNumber { major, minor }, owner);
        }
    }

    fn channels(&mut self, channels: &[DeviceNode]) {
        self.directory(IMEX);
        for node in channels {
            let name = format!("{IMEX}/{}", node.path.file_name().display());
            self.node(&name, node.number, node.owner.or(Some(FOR_ALL)));
        }
    }

    fn driver_node(&mut self, name: &str, minor: u32, owner: Option<NodeOwner>) {
        let major = NVIDIA_MAJOR;
        self.node(name, DeviceNumber { major, minor }, owner);
    }

    /// Creates or corrects a node, unless it has no owner because the administrator forbids that.
    fn node(&mut self, name: &str, number: DeviceNumber, owner: Option<NodeOwner>) {
        if let Some(owner) = owner {
            let done = self.nodes.ensure(name, number, owner);
            self.done("device node", name, done);
        } else {
            debug!("the driver's parameters forbid creating /dev/{name}");
        }
    }

    fn directory(&mut self, name: &str) {
        let done = self.nodes.ensure_directory(name);
        self.done("directory", name, done);
    }

    fn done(&mut self, what: &str, name: &str, result: nix::Result<()>) {
        if let Err(errno) = result {
            let path = self.root.join(&HostPath::new("/dev").join(name));
            self.problem(format!(
                "cannot create {what} {}: {}",
                path.display(),
                errno_text(errno)
            ));
        }
    }

    fn problem(&mut self, text: String) {
        info!("{text}");
        self.problems.push(text);
    }

    fn read(&self, path: impl AsRef<std::path::Path>) -> Option<String> {
        let bytes = self.root.read(&HostPath::new(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests;
