//! Makes the edits that every container with a GPU gets: the driver's nodes and files, and the hooks that go with them.

use std::path::Path;

use libnvc::{HostPath, Result};

use super::hooks::repeated;
use super::libraries::Libraries;
use super::tree::Tree;
use super::{Options, files, graphics};
use crate::cdi::{Edits, Mount};
use crate::gated::READ_ONLY;
use crate::nodes::Nodes;

/// Nodes that all GPUs share.
const CONTROL: [&str; 4] = [
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-uvm",
    "/dev/nvidiactl",
];

/// What the edits are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Containers that use GPUs.
    Users,
    /// Containers that manage them: no graphics, and they may make nodes.
    Managers,
}

/// The device nodes of a request's tree.
pub(super) fn nodes(options: &Options) -> Nodes {
    Nodes {
        root: options.dev_root.clone(),
        groups: options.gids && !options.flags.no_additional_gids,
    }
}

/// The driver's edits. `version` is the kernel driver's, if it said.
pub(super) fn edits(
    options: &Options,
    version: Option<&str>,
    whose: For,
    warnings: &mut Vec<String>,
) -> Result<Edits> {
    let tree = Tree::open(&options.driver_root)?;
    let libraries = Libraries::new(&tree, &options.library_search);
    let by_name = || {
        let error = libnvc::Error::new(
            libnvc::ErrorKind::NotFound,
            "the driver's version is unknown: no libcuda.so and no libnvidia-ml.so",
        );
        libraries.version().ok_or(error)
    };
    let version = version.map_or_else(by_name, |version| Ok(version.to_string()))?;
    let directories = libraries.directories_of(&version)?;
    let mut edits = Edits::default();
    if whose == For::Users {
        let nodes = nodes(options);
        for path in CONTROL {
            if nodes.add(path, &mut edits).is_err() {
                warnings.push(format!("{path} is missing"));
            }
        }
        graphics::add(
            options,
            &tree,
            &libraries,
            &directories,
            &version,
            &mut edits,
        );
    }
    let found = libraries.of_version(
        &directories,
        &version,
        options.flags.explicit_driver_libraries,
    );
    for library in &found {
        mount(&tree, library, &mut edits);
    }
    let hooks = &options.hooks;
    hooks.add_links(&libraries.links(&found, &version), &mut edits);
    hooks.add(
        "enable-cuda-compat",
        vec![format!("--host-driver-version={version}")],
        &mut edits,
    );
    add_library_path(options, &found, &mut edits);
    if whose == For::Users {
        hooks.add("disable-device-node-modification", Vec::new(), &mut edits);
        hooks.add("filter-driver-proc", Vec::new(), &mut edits);
    }
    let names: Vec<String> = directories.iter().map(ToString::to_string).collect();
    edits
        .env
        .push(format!("NVIDIA_CTK_LIBCUDA_DIR={}", names.join(":")));
    if !options.flags.no_ipc {
        files::sockets(&tree, &mut edits);
    }
    files::firmware(&tree, &version, &mut edits);
    files::programs(&tree, &options.path, &mut edits);
    if whose == For::Users {
        hooks.add("update-application-profile", Vec::new(), &mut edits);
    }
    Ok(edits)
}

/// The hook that makes libraries known to the loader, if any are mounted.
pub(super) fn add_library_path(options: &Options, libraries: &[HostPath], edits: &mut Edits) {
    let mut folders: Vec<String> = Vec::new();
    for library in libraries {
        let name = library.file_name().to_string_lossy().into_owned();
        let is_library =
            name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."));
        let folder = library.parent().to_string();
        if is_library && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    if folders.is_empty() {
        return;
    }
    folders.sort();
    let ldconfig = options
        .ldconfig
        .iter()
        .flat_map(|path| ["--ldconfig-path".to_string(), path.clone()]);
    let arguments = ldconfig.chain(repeated("--folder", &folders)).collect();
    options.hooks.add("update-ldcache", arguments, edits);
}

/// Mounts a file where it is on the host, without the driver root.
pub(super) fn mount(tree: &Tree, file: &HostPath, edits: &mut Edits) {
    mount_at(tree, file, file.as_path(), edits);
}

/// Mounts a file at some place.
pub(super) fn mount_at(tree: &Tree, file: &HostPath, at: &Path, edits: &mut Edits) {
    edits.mounts.push(Mount {
        host_path: tree.on_host(file),
        container_path: at.to_string_lossy().into_owned(),
        options: READ_ONLY.map(String::from).to_vec(),
        kind: String::new(),
    });
}
