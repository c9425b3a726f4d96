//! Finds the driver's files by libnvc, and renders plans as edits, with the selected hooks and groups.

use std::path::{Path, PathBuf};

use libnvc::host::{DriverInfo, DriverRoot, everything};
use libnvc::options::CudaCompatMode;
use libnvc::plan::Intent;
use libnvc::render::cdi as rendered;
use libnvc::request::{Capabilities, Placement, Policy, Request};
use libnvc::{Error, HostPath, Result};
use nvc_cdi::{CHARACTER, DeviceNode, Edits, Mount};

use super::Options;
use crate::nodes::Nodes;

/// Returns the device nodes of the options' tree.
pub(super) fn nodes(options: &Options) -> Nodes {
    Nodes::new(options.dev_root.clone(), has_groups(options))
}

fn has_groups(options: &Options) -> bool {
    options.gids && !options.flags.no_additional_gids
}

/// Returns the canonical driver root. Found paths would not start with a symlink or a relative path.
pub(super) fn root(options: &Options) -> PathBuf {
    let path = &options.driver_root;
    std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())
}

/// Opens the root of the device nodes.
pub(super) fn dev_root(options: &Options) -> Result<DriverRoot> {
    let path = &options.dev_root;
    DriverRoot::open(path).map_err(|error| {
        let text = format!("no device nodes in {}: {}", path.display(), error.message());
        Error::new(error.kind(), text)
    })
}

/// Returns all files of the driver. `version` is the kernel driver's; if it is unknown, that of the libraries.
pub(super) fn files(options: &Options, version: Option<&str>) -> Result<DriverInfo> {
    let root = DriverRoot::open(&root(options))?;
    everything::find(&root, version, &search(options))
}

/// Returns the directories to search.
pub(super) fn search(options: &Options) -> everything::FileSearch {
    let paths = |paths: &[PathBuf]| paths.iter().map(HostPath::new).collect();
    let listed = |text: &str| {
        let directories = text.split(':').filter(|path| path.starts_with('/'));
        directories.map(HostPath::new).collect()
    };
    everything::FileSearch {
        libraries: paths(&options.library_search),
        configuration: paths(&options.config_search),
        data: listed(&options.data_dirs),
        programs: listed(&options.path),
        explicit: options.flags.explicit_driver_libraries,
        no_sockets: options.flags.no_ipc,
    }
}

/// Returns a request for everything a driver has, for unknown images.
pub(super) fn request() -> Request {
    Request {
        capabilities: Capabilities::all(),
        policy: Policy {
            cuda_compat: CudaCompatMode::Ldconfig,
            placement: Placement::AsHost,
            environment: true,
            ..Policy::default()
        },
        ..Request::default()
    }
}

/// Returns the options for rendering.
pub(super) fn rendering(options: &Options) -> rendered::Options {
    rendered::Options {
        driver_root: root(options),
        dev_root: options.dev_root.clone(),
        ldconfig: options.ldconfig.as_ref().map(PathBuf::from),
    }
}

/// Renders some intents as edits.
pub(super) fn edits(intents: &[Intent], options: &Options) -> Edits {
    written(rendered::edits(intents, &rendering(options)), options)
}

/// Converts rendered edits to a specification's.
pub(super) fn written(from: rendered::Edits, options: &Options) -> Edits {
    let mut edits = Edits::default();
    let env = from.env.iter();
    edits
        .env
        .extend(env.map(|(name, value)| format!("{name}={value}")));
    let groups = has_groups(options);
    for node in &from.device_nodes {
        add_node(node, groups, &mut edits);
    }
    for hook in from.hooks {
        options.hooks.add(hook.name, hook.arguments, &mut edits);
    }
    edits.mounts.extend(from.mounts.iter().map(|mount| {
        Mount {
            host_path: text(&mount.host_path),
            container_path: mount.container_path.to_string(),
            options: mount
                .options
                .words()
                .iter()
                .map(ToString::to_string)
                .collect(),
            kind: String::new(),
        }
    }));
    edits
}

/// Adds a node, and its group if not every user may access it.
fn add_node(node: &rendered::DeviceNode, groups: bool, edits: &mut Edits) {
    let mode = node.owner.map(|owner| owner.mode & 0o777);
    let gid = node.owner.map(|owner| owner.gid).filter(|gid| *gid != 0);
    edits.device_nodes.push(DeviceNode {
        path: node.path.to_string(),
        host_path: node.host_path.as_deref().map(text).unwrap_or_default(),
        kind: CHARACTER.into(),
        file_mode: mode,
        permissions: node.permissions.into(),
        gid,
        ..DeviceNode::default()
    });
    let for_everybody = mode.is_none_or(|mode| mode & 0o006 == 0o006);
    if let (Some(gid), true, false) = (gid, groups, for_everybody)
        && !edits.additional_gids.contains(&gid)
    {
        edits.additional_gids.push(gid);
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
