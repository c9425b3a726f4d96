//! Renders a plan as edits of a container's configuration.
//!
//! Names of hooks and their arguments are upstream's, so that specifications of mixed installations work;
//! `filter-driver-proc` is ours. A plan must be one for unknown images
//! ([`AsHost`](libnvc::request::Placement::AsHost)).

use std::path::{Path, PathBuf};

use libnvc::ContainerPath;
use libnvc::host::FileClass;
use libnvc::plan::{
    Alias, CudaCompat, Device, DriverProc, EglDevices, Intent, LibraryPath, Mount, Part, PartKind,
    Place, Plan, ProcDevices, Sockets, What,
};
use nvc_cdi::{CHARACTER, DeviceNode, Edits};
use nvc_program::hook_names::{
    CREATE_SYMLINKS, DISABLE_NODE_MODIFICATION, ENABLE_CUDA_COMPAT, FILTER_DRIVER_PROC,
    MOUNT_SOCKETS, UPDATE_LDCACHE, UPDATE_PROFILE,
};

use crate::draft::{Draft, DraftHook, repeated};
use crate::{Options, driver};

/// The edits of a plan, shaped like it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RenderedPlan {
    /// Those of each device.
    pub(crate) devices: Vec<RenderedPart>,
    /// Those for every container with one of the devices.
    pub(crate) common: Draft,
}

/// The edits of a plan's part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RenderedPart {
    pub(crate) kind: PartKind,
    /// First its index, then its UUID.
    pub(crate) names: Vec<String>,
    pub(crate) draft: Draft,
}

/// The hooks in their order: links first, then hooks that read libraries.
const ORDER: [&str; 7] = [
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LDCACHE,
    DISABLE_NODE_MODIFICATION,
    FILTER_DRIVER_PROC,
    UPDATE_PROFILE,
    MOUNT_SOCKETS,
];

/// Renders a plan.
pub(crate) fn plan(plan: &Plan, options: &Options) -> RenderedPlan {
    let root = driver::root(options);
    let part = |part: &Part| RenderedPart {
        kind: part.kind,
        names: part.names.clone(),
        draft: Writer::new(options, &root).draft(&part.intents),
    };
    RenderedPlan {
        devices: plan.devices.iter().map(part).collect(),
        common: Writer::new(options, &root).draft(&plan.common),
    }
}

/// Renders some intents for all containers.
pub fn edits(intents: &[Intent], options: &Options) -> Edits {
    draft(intents, options).render(&options.hooks.program)
}

/// Renders some intents for all containers, except their hooks.
pub(crate) fn draft(intents: &[Intent], options: &Options) -> Draft {
    Writer::new(options, &driver::root(options)).draft(intents)
}

/// Returns the mount options of a file class as in fstab, in upstream's order.
pub(crate) fn mount_options(class: FileClass) -> &'static [&'static str] {
    match class {
        FileClass::Library
        | FileClass::XModule
        | FileClass::Program
        | FileClass::Firmware
        | FileClass::Config
        | FileClass::Data => &["ro", "nosuid", "nodev", "rbind", "rprivate"],
        FileClass::Socket => &["nosuid", "nodev", "rbind", "rprivate", "noexec"],
        FileClass::DeviceDir => &["nosuid", "noexec", "rbind", "rprivate"],
    }
}

struct Writer<'o> {
    options: &'o Options,
    /// The driver root.
    root: &'o Path,
    edits: Edits,
    hooks: Vec<DraftHook>,
    /// Consecutive links, which share a hook.
    links: Vec<String>,
}

impl<'o> Writer<'o> {
    fn new(options: &'o Options, root: &'o Path) -> Self {
        Self {
            options,
            root,
            edits: Edits::default(),
            hooks: Vec::new(),
            links: Vec::new(),
        }
    }

    fn draft(mut self, intents: &[Intent]) -> Draft {
        for intent in intents {
            match &intent.what {
                What::Link(link) => self.link(&link.target, &link.at),
                What::Alias(alias) => self.alias(alias),
                what => {
                    self.end_links();
                    self.intent(what);
                }
            }
        }
        self.end_links();
        let rank = |name: &str| ORDER.iter().position(|known| *known == name);
        let is_on = |hook: &DraftHook| !self.options.hooks.is_off(hook.name);
        let mut hooks: Vec<DraftHook> = self.hooks.into_iter().filter(is_on).collect();
        hooks.sort_by_key(|hook| rank(hook.name));
        let edits = self.edits;
        Draft { edits, hooks }
    }

    fn intent(&mut self, what: &What) {
        match what {
            What::Device(device) => self.device(device),
            What::Mount(mount) => self.mount(mount),
            What::Env(variable) => {
                let entry = format!("{}={}", variable.name, variable.value);
                self.edits.env.push(entry);
            }
            What::LibraryPath(libraries) => self.library_path(libraries),
            What::CudaCompat(compat) => self.compat(compat),
            What::DriverProc(shown) => self.driver_proc(shown),
            What::EglProfile(shown) if shown.devices == EglDevices::Own => {
                self.hook(UPDATE_PROFILE, Vec::new());
            }
            What::Sockets(sockets) => self.sockets(sockets),
            // Planned devices are for containers that exist, and permissions are a hook's own intent.
            What::EglProfile(_) | What::Link(_) | What::Alias(_) | What::Mode(_) => {}
        }
    }

    /// Adds a node, and its group if not every user may access it.
    fn device(&mut self, device: &Device) {
        if !device.bind {
            return;
        }
        let on_host = device.source.below(&self.options.dev_root);
        let is_same = on_host == device.at.as_path();
        let mode = device.owner.map(|owner| owner.mode & 0o777);
        let gid = device.owner.map(|owner| owner.gid);
        let gid = gid.filter(|gid| *gid != 0);
        let node = DeviceNode {
            path: device.at.to_string(),
            host_path: if is_same {
                String::new()
            } else {
                text(&on_host)
            },
            kind: CHARACTER.into(),
            file_mode: mode,
            permissions: "rwm".into(),
            gid,
            ..DeviceNode::default()
        };
        let for_everybody = mode.is_none_or(|mode| mode & 0o006 == 0o006);
        let groups = &mut self.edits.additional_gids;
        if let (Some(gid), true, false) = (gid, driver::has_groups(self.options), for_everybody)
            && !groups.contains(&gid)
        {
            groups.push(gid);
        }
        if !self.edits.device_nodes.contains(&node) {
            self.edits.device_nodes.push(node);
        }
    }

    fn mount(&mut self, mount: &Mount) {
        let Some(container_path) = path_of(&mount.place) else {
            return;
        };
        let options = mount_options(mount.class).iter();
        self.edits.mounts.push(nvc_cdi::Mount {
            host_path: text(&mount.source.below(self.root)),
            container_path: container_path.to_string(),
            options: options.map(ToString::to_string).collect(),
            kind: String::new(),
        });
    }

    fn link(&mut self, target: &Path, at: &Place) {
        if let Some(at) = path_of(at) {
            let pair = format!("{}::{at}", target.display());
            self.links.push(pair);
        }
    }

    fn alias(&mut self, alias: &Alias) {
        let Some(of) = path_of(&alias.of) else {
            return;
        };
        // A link of the image can make both one path. Another program would try to replace the file, and fail.
        if self.options.hooks.is_ours || of.file_name() != alias.at.file_name() {
            self.link(of.as_path(), &Place::At(alias.at.clone()));
        }
    }

    fn end_links(&mut self) {
        let links = std::mem::take(&mut self.links);
        if !links.is_empty() {
            self.hook(CREATE_SYMLINKS, repeated("--link", links));
        }
    }

    fn library_path(&mut self, libraries: &LibraryPath) {
        let folders = libraries.directories.iter().filter_map(path_of);
        let folders = repeated("--folder", folders.map(ToString::to_string));
        if folders.is_empty() {
            return;
        }
        let ldconfig = repeated("--ldconfig-path", self.options.ldconfig.clone());
        let arguments = [ldconfig, folders].concat();
        self.hook(UPDATE_LDCACHE, arguments);
    }

    fn compat(&mut self, compat: &CudaCompat) {
        let mut arguments = vec![format!("--host-driver-version={}", compat.host_driver)];
        if let Some(root) = &compat.root {
            arguments.push(format!("--cuda-compat-container-root={root}"));
        }
        self.hook(ENABLE_CUDA_COMPAT, arguments);
    }

    /// Leaves sockets to our hook, which looks for them when a container starts. Upstream's program does nothing if it
    /// does not know a hook, and older ones fail.
    fn sockets(&mut self, sockets: &Sockets) {
        if !self.options.hooks.is_ours {
            return;
        }
        let root: PathBuf = sockets.root.below(self.root).components().collect();
        let mut arguments = Vec::new();
        if root != Path::new("/") {
            arguments.extend(["--driver-root".to_owned(), text(&root)]);
        }
        let daemons = sockets.daemons.iter().map(|daemon| daemon.word());
        arguments.extend(repeated("--daemon", daemons));
        self.hook(MOUNT_SOCKETS, arguments);
    }

    fn driver_proc(&mut self, shown: &DriverProc) {
        if shown.no_new_nodes {
            self.hook(DISABLE_NODE_MODIFICATION, Vec::new());
        }
        if shown.devices == ProcDevices::Own {
            self.hook(FILTER_DRIVER_PROC, Vec::new());
        }
    }

    fn hook(&mut self, name: &'static str, arguments: Vec<String>) {
        self.hooks.push(DraftHook::new(name, arguments));
    }
}

/// Returns the path of a place that does not depend on the image.
fn path_of(place: &Place) -> Option<&ContainerPath> {
    match place {
        Place::At(path) => Some(path),
        Place::Library(_) | Place::Library32(_) | Place::Program(_) | Place::XModule(_) => None,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
