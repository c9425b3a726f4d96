//! Renders a plan as the content of a CDI specification.
//!
//! The result is plain data: the devices with their names, their edits and the common edits. The file's format
//! (version, kind, path of the hook program, YAML) is up to the caller. Names of hooks and their arguments are
//! upstream's, so that specifications of mixed installations work; `filter-driver-proc` is ours.

use std::path::{Path, PathBuf};

use super::{MountOptions, on_host};
use crate::host::{DeviceNumber, NodeOwner};
use crate::path::ContainerPath;
use crate::plan::{
    CudaCompat, Device, Intent, LibraryPath, Link, Mount, Part, PartKind, Place, Plan, What,
};

/// Options of a specification.
#[derive(Clone, Debug)]
pub struct Options {
    /// The driver root on the host.
    pub driver_root: PathBuf,
    /// The root of the device nodes on the host.
    pub dev_root: PathBuf,
    /// The ldconfig that hooks run, if not their default.
    pub ldconfig: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            driver_root: "/".into(),
            dev_root: "/".into(),
            ldconfig: None,
        }
    }
}

/// Content of a specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The devices.
    pub devices: Vec<NamedDevice>,
    /// Edits for every container with one of the devices.
    pub common: Edits,
}

/// A device of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// Its kind. A GPU in MIG mode should not be offered.
    pub kind: PartKind,
    /// Its names: first its index, then its UUID.
    pub names: Vec<String>,
    /// Its edits.
    pub edits: Edits,
}

/// Changes to a container's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Environment variables, name and value.
    pub env: Vec<(String, String)>,
    /// Device nodes.
    pub device_nodes: Vec<DeviceNode>,
    /// createContainer hooks.
    pub hooks: Vec<Hook>,
    /// Bind mounts.
    pub mounts: Vec<BindMount>,
}

/// A device node, named by path because numbers can change at every boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNode {
    /// Its path in the container.
    pub path: ContainerPath,
    /// Its path on the host, if different.
    pub host_path: Option<PathBuf>,
    /// Its number when the plan was made.
    pub number: DeviceNumber,
    /// Permissions and owner of the host's node, if they were read.
    pub owner: Option<NodeOwner>,
    /// Permissions in the device cgroup.
    pub permissions: &'static str,
}

/// A run of the hook program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hook {
    /// Name of the task, the program's first argument.
    pub name: &'static str,
    /// Remaining arguments.
    pub arguments: Vec<String>,
}

/// A bind mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BindMount {
    /// Its path on the host.
    pub host_path: PathBuf,
    /// Its path in the container.
    pub container_path: ContainerPath,
    /// Options as in fstab.
    pub options: MountOptions,
}

/// The hook that creates symbolic links.
pub const CREATE_SYMLINKS: &str = "create-symlinks";
/// The hook that updates the library path.
pub const UPDATE_LDCACHE: &str = "update-ldcache";
/// The hook that enables the image's CUDA compatibility libraries.
pub const ENABLE_CUDA_COMPAT: &str = "enable-cuda-compat";
/// The hook that tells programs not to create device nodes.
pub const DISABLE_NODE_MODIFICATION: &str = "disable-device-node-modification";
/// The hook that hides other GPUs in procfs.
pub const FILTER_DRIVER_PROC: &str = "filter-driver-proc";
/// The hook that hides other GPUs from EGL.
pub const UPDATE_PROFILE: &str = "update-application-profile";

/// Returns the content of a plan's specification.
///
/// The plan must be one for unknown images ([`AsHost`](crate::request::Placement::AsHost)).
pub fn content(plan: &Plan, options: &Options) -> Content {
    let device = |part: &Part| NamedDevice {
        kind: part.kind,
        names: part.names.clone(),
        edits: Writer::new(options).edits(&part.intents, Whose::Device),
    };
    Content {
        devices: plan.devices.iter().map(device).collect(),
        common: Writer::new(options).edits(&plan.common, Whose::All),
    }
}

/// Returns the edits for a container with these intents, with the parts of `content` combined.
pub fn edits(intents: &[Intent], options: &Options) -> Edits {
    Writer::new(options).edits(intents, Whose::All)
}

/// The owner of the edits: hooks for procfs and EGL are common to all devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    All,
    Device,
}

struct Writer<'o> {
    options: &'o Options,
    edits: Edits,
    /// Consecutive links, which share a hook.
    links: Vec<String>,
}

impl<'o> Writer<'o> {
    fn new(options: &'o Options) -> Self {
        Self {
            options,
            edits: Edits::default(),
            links: Vec::new(),
        }
    }

    fn edits(mut self, intents: &[Intent], whose: Whose) -> Edits {
        for intent in intents {
            if let What::Link(link) = &intent.what {
                self.link(link);
                continue;
            }
            self.end_links();
            self.intent(&intent.what, whose);
        }
        self.end_links();
        self.edits.hooks.sort_by_key(|hook| rank(hook.name));
        self.edits
    }

    fn intent(&mut self, what: &What, whose: Whose) {
        match what {
            What::Device(device) => self.device(device),
            What::Mount(mount) => self.mount(mount),
            What::Env(variable) => {
                let pair = (variable.name.clone(), variable.value.clone());
                self.edits.env.push(pair);
            }
            What::LibraryPath(libraries) => self.library_path(libraries),
            What::CudaCompat(compat) => self.compat(compat),
            What::DriverProc(_) if whose == Whose::All => {
                self.hook_once(DISABLE_NODE_MODIFICATION);
                self.hook_once(FILTER_DRIVER_PROC);
            }
            What::EglProfile(_) if whose == Whose::All => self.hook_once(UPDATE_PROFILE),
            What::DriverProc(_) | What::EglProfile(_) | What::Link(_) => {}
            // A hook's own intents.
            What::DriverParams | What::DriverDevices | What::ProfileFile | What::Mode(_) => {}
        }
    }

    fn device(&mut self, device: &Device) {
        if !device.bind {
            return;
        }
        let on_host = on_host(&self.options.dev_root, &device.source);
        let is_same = on_host == device.at.as_path();
        let node = DeviceNode {
            path: device.at.clone(),
            host_path: (!is_same).then_some(on_host),
            number: device.number,
            owner: device.owner,
            permissions: "rwm",
        };
        if !self.edits.device_nodes.contains(&node) {
            self.edits.device_nodes.push(node);
        }
    }

    fn mount(&mut self, mount: &Mount) {
        let Some(container_path) = path_of(&mount.place) else {
            return;
        };
        self.edits.mounts.push(BindMount {
            host_path: on_host(&self.options.driver_root, &mount.source),
            container_path: container_path.clone(),
            options: MountOptions::of(mount.class),
        });
    }

    fn link(&mut self, link: &Link) {
        if let Some(at) = path_of(&link.at) {
            let pair = format!("{}::{at}", link.target.display());
            self.links.extend(["--link".into(), pair]);
        }
    }

    fn end_links(&mut self) {
        let arguments = std::mem::take(&mut self.links);
        if !arguments.is_empty() {
            self.hook(CREATE_SYMLINKS, arguments);
        }
    }

    fn library_path(&mut self, libraries: &LibraryPath) {
        let folders = libraries.directories.iter().filter_map(path_of);
        let folders: Vec<_> = folders
            .flat_map(|folder| ["--folder".into(), folder.to_string()])
            .collect();
        if folders.is_empty() {
            return;
        }
        let ldconfig = self.options.ldconfig.iter();
        let ldconfig = ldconfig.flat_map(|path| ["--ldconfig-path".into(), text(path)]);
        let arguments = ldconfig.chain(folders).collect();
        self.hook(UPDATE_LDCACHE, arguments);
    }

    fn compat(&mut self, compat: &CudaCompat) {
        let mut arguments = vec![format!("--host-driver-version={}", compat.host_driver)];
        if let Some(root) = &compat.root {
            arguments.push(format!("--cuda-compat-container-root={root}"));
        }
        self.hook(ENABLE_CUDA_COMPAT, arguments);
    }

    fn hook(&mut self, name: &'static str, arguments: Vec<String>) {
        self.edits.hooks.push(Hook { name, arguments });
    }

    fn hook_once(&mut self, name: &'static str) {
        if !self.edits.hooks.iter().any(|hook| hook.name == name) {
            self.hook(name, Vec::new());
        }
    }
}

/// Returns a hook's position in the execution order: links first, then hooks that read libraries.
fn rank(name: &str) -> usize {
    let order = [
        CREATE_SYMLINKS,
        ENABLE_CUDA_COMPAT,
        UPDATE_LDCACHE,
        DISABLE_NODE_MODIFICATION,
        FILTER_DRIVER_PROC,
        UPDATE_PROFILE,
    ];
    let place = order.iter().position(|known| *known == name);
    place.unwrap_or(order.len())
}

/// Returns the path of a place that does not depend on the image.
fn path_of(place: &Place) -> Option<&ContainerPath> {
    match place {
        Place::At(path) => Some(path),
        Place::Library(_) | Place::Library32(_) | Place::Program(_) => None,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
pub(super) mod tests;
