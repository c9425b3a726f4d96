//! Writes a plan as the content of a CDI specification.
//!
//! The result is plain data: which devices there are by which names, and what each of them and all of them need. The
//! form of the file (version, kind, path of the hook program, YAML) is the business of whoever writes it. Names of
//! hooks and their arguments are upstream's, so that specifications of mixed installations work; `filter-driver-proc` and
//! `merged` are ours.

use std::path::{Path, PathBuf};

use super::{MountOptions, on_host};
use crate::host::{DeviceNumber, NodeOwner};
use crate::path::ContainerPath;
use crate::plan::{
    CudaCompat, Device, Intent, LibraryPath, Link, Mount, Part, PartKind, Place, Plan, What,
};

/// How a specification is written.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the driver's files are on the host.
    pub driver_root: PathBuf,
    /// Where the device nodes are on the host.
    pub dev_root: PathBuf,
    /// Which hooks there are.
    pub hooks: Hooks,
    /// The ldconfig that hooks run, if not theirs.
    pub ldconfig: Option<PathBuf>,
}

/// Which hooks a specification has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hooks {
    /// One for each kind of work, as upstream has them.
    #[default]
    Separate,
    /// One that does all of it.
    Merged,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            driver_root: "/".into(),
            dev_root: "/".into(),
            hooks: Hooks::default(),
            ldconfig: None,
        }
    }
}

/// What a specification says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The devices.
    pub devices: Vec<NamedDevice>,
    /// What every container with one of them needs.
    pub common: Edits,
}

/// A device of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// What sort of device it is. A GPU that is divided into MIG devices should not be offered.
    pub kind: PartKind,
    /// Names it goes by: first its index, then its UUID.
    pub names: Vec<String>,
    /// What it needs.
    pub edits: Edits,
}

/// What is added to a container's configuration.
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

/// A device node. It is named by path: numbers can change at every boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNode {
    /// Where it is in the container.
    pub path: ContainerPath,
    /// Where it is on the host, if that is not the same path.
    pub host_path: Option<PathBuf>,
    /// The number that it had when the plan was made.
    pub number: DeviceNumber,
    /// Permissions and owner of the host's node, if it was looked at.
    pub owner: Option<NodeOwner>,
    /// What the device cgroup allows.
    pub permissions: &'static str,
}

/// A run of the hook program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hook {
    /// The name of the work, the program's first argument.
    pub name: &'static str,
    /// Further arguments.
    pub arguments: Vec<String>,
}

/// A bind mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BindMount {
    /// Where it is on the host.
    pub host_path: PathBuf,
    /// Where it is in the container.
    pub container_path: ContainerPath,
    /// Options as of fstab.
    pub options: MountOptions,
}

/// The hook that makes symbolic links.
pub const CREATE_SYMLINKS: &str = "create-symlinks";
/// The hook that updates the library path.
pub const UPDATE_LDCACHE: &str = "update-ldcache";
/// The hook that makes the image's CUDA compatibility libraries be used.
pub const ENABLE_CUDA_COMPAT: &str = "enable-cuda-compat";
/// The hook that tells programs not to make device nodes.
pub const DISABLE_NODE_MODIFICATION: &str = "disable-device-node-modification";
/// The hook that hides other GPUs in procfs.
pub const FILTER_DRIVER_PROC: &str = "filter-driver-proc";
/// The hook that hides other GPUs from EGL.
pub const UPDATE_PROFILE: &str = "update-application-profile";
/// The hook that does all of the above.
pub const MERGED: &str = "merged";

/// The content of the specification that a plan comes to.
///
/// The plan is one for images that are not known ([`AsHost`](crate::request::Placement::AsHost)).
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

/// The edits that give a container some of a plan: what `content` says of all its parts at once.
pub fn edits(intents: &[Intent], options: &Options) -> Edits {
    Writer::new(options).edits(intents, Whose::All)
}

/// Whose edits are written: hooks for procfs and EGL are for all devices alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    All,
    Device,
}

struct Writer<'o> {
    options: &'o Options,
    edits: Edits,
    /// Links that go into one hook: those that follow each other.
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
        if self.options.hooks == Hooks::Merged && whose == Whose::All {
            self.merge_hooks();
        }
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

    /// One hook of all: arguments keep their names, hooks without arguments become flags.
    fn merge_hooks(&mut self) {
        let hooks = std::mem::take(&mut self.edits.hooks);
        if hooks.is_empty() {
            return;
        }
        let mut arguments = vec!["--version=1".to_owned()];
        for hook in hooks {
            if hook.arguments.is_empty() {
                arguments.push(format!("--{}", hook.name));
            }
            arguments.extend(hook.arguments);
        }
        self.hook(MERGED, arguments);
    }
}

/// The order in which hooks run: links first, then what looks at libraries.
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

/// The path of a place that does not depend on the image.
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
