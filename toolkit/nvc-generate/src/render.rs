//! Renders intents as edits of a container's configuration.
//!
//! Names of hooks and their arguments are upstream's, so that specifications of mixed installations work;
//! `filter-driver-proc` is ours. A specification's plan must be one for unknown images
//! ([`AsHost`](libnvc::request::Placement::AsHost)).

use std::path::{Path, PathBuf};

use libnvc::host::{FileClass, nodes};
use libnvc::plan::{
    Alias, CompatUse, CudaCompat, Device, Intent, LibraryPath, Mount, Need, Place, ProcDevices,
    Sockets, What, handover,
};
use libnvc::{ContainerPath, HostPath, Result};
use nvc_cdi::{CHARACTER, DeviceNode, Edits, Hook};
use nvc_program::hook_names::{
    APPLY, CHMOD, CREATE_SYMLINKS, DISABLE_NODE_MODIFICATION, ENABLE_CUDA_COMPAT,
    FILTER_DRIVER_PROC, MOUNT_SOCKETS, UPDATE_LDCACHE, UPDATE_PROFILE,
};

use crate::Rendering;

/// The hooks in their order: links first, then hooks that read libraries.
const ORDER: [&str; 8] = [
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LDCACHE,
    DISABLE_NODE_MODIFICATION,
    FILTER_DRIVER_PROC,
    UPDATE_PROFILE,
    MOUNT_SOCKETS,
    CHMOD,
];

/// Renders nodes and variables.
pub fn nodes_and_variables(intents: &[Intent], rendering: &Rendering) -> Edits {
    let mut edits = Edits::default();
    for intent in intents {
        match &intent.what {
            What::Device(device) => add_device(device, rendering, &mut edits),
            What::Env(variable) => {
                let entry = format!("{}={}", variable.name, variable.value);
                edits.env.push(entry);
            }
            _ => {}
        }
    }
    edits
}

/// Returns the hook that applies intents, with further words of its command line.
///
/// # Errors
/// Those of [`handover::encode`].
pub fn apply_hook(intents: &[Intent], words: &[String], rendering: &Rendering) -> Result<Hook> {
    let plan = format!("--plan={}", handover::encode(intents)?);
    let words = ldconfig(rendering).into_iter().chain(words.iter().cloned());
    Ok(rendering.hooks.program.hook(APPLY, words.chain([plan])))
}

/// Renders intents for a specification that lists files. `search` are the words by which a hook finds the driver's files
/// instead.
pub(crate) fn of_specification(
    intents: &[Intent],
    search: &[String],
    rendering: &Rendering,
) -> Result<Edits> {
    let mut edits = nodes_and_variables(intents, rendering);
    let intents = rendering.hooks.intents(intents);
    edits.mounts = intents
        .iter()
        .filter_map(|intent| mount(&intent.what))
        .collect();
    edits.hooks = if rendering.hooks.merged || !search.is_empty() {
        let intents: Vec<Intent> = intents.into_iter().filter_map(beside_mounts).collect();
        if intents.is_empty() && search.is_empty() {
            Vec::new()
        } else {
            vec![apply_hook(&intents, search, rendering)?]
        }
    } else {
        separate(&intents, rendering)
    };
    Ok(edits)
}

/// Returns the mount options of a file class as in fstab, in upstream's order.
fn mount_options(class: FileClass) -> &'static [&'static str] {
    match class {
        FileClass::Library
        | FileClass::XModule
        | FileClass::Program
        | FileClass::Firmware
        | FileClass::Config
        | FileClass::Data
        | FileClass::DataDir => &["ro", "nosuid", "nodev", "rbind", "rprivate"],
        FileClass::Socket => &["nosuid", "nodev", "rbind", "rprivate", "noexec"],
        FileClass::DeviceDir => &["nosuid", "noexec", "rbind", "rprivate"],
    }
}

/// Adds a node, and its group if not every user may access it.
fn add_device(device: &Device, rendering: &Rendering, edits: &mut Edits) {
    if !device.bind {
        return;
    }
    // As upstream: such a node may be made later.
    let is_channel =
        device.owner.is_none() && device.at.parent() == ContainerPath::new(nodes::IMEX_DIRECTORY);
    let is_same = device.source.as_path() == device.at.as_path() && !is_channel;
    let mode = device.owner.map(|owner| owner.mode & 0o777);
    let gid = device.owner.map(|owner| owner.gid);
    let gid = gid.filter(|gid| *gid != 0 && rendering.gids);
    let node = DeviceNode {
        path: device.at.to_string(),
        host_path: if is_same {
            String::new()
        } else {
            text(&device.source)
        },
        kind: CHARACTER.into(),
        file_mode: mode,
        permissions: if is_channel { "" } else { "rwm" }.into(),
        gid,
        ..DeviceNode::default()
    };
    let for_everybody = mode.is_none_or(|mode| mode & 0o006 == 0o006);
    let groups = &mut edits.additional_gids;
    if let (Some(gid), true, false) = (gid, rendering.additional_gids, for_everybody)
        && !groups.contains(&gid)
    {
        groups.push(gid);
    }
    if !edits.device_nodes.contains(&node) {
        edits.device_nodes.push(node);
    }
}

fn mount(what: &What) -> Option<nvc_cdi::Mount> {
    let What::Mount(Mount {
        source,
        place: Place::At(place),
        class,
    }) = what
    else {
        return None;
    };
    let options = mount_options(*class).iter();
    Some(nvc_cdi::Mount {
        host_path: text(source),
        container_path: place.to_string(),
        options: options.map(ToString::to_string).collect(),
        kind: String::new(),
    })
}

/// Returns the form of an intent beside mounts of an engine, which does not know what the image's loader needs; None for
/// such a mount.
fn beside_mounts(mut intent: Intent) -> Option<Intent> {
    match &mut intent.what {
        What::Mount(_) => return None,
        What::Link(link) => link.replaces = true,
        What::LibraryPath(libraries) => {
            if libraries.directories.is_empty() {
                return None;
            }
            libraries.after_hooks = true;
        }
        What::CudaCompat(compat) => {
            compat.how = CompatUse::Configure;
            intent.need = Need::WherePermitted;
        }
        _ => {}
    }
    Some(intent)
}

/// Returns a hook for each kind of intent; consecutive links share one.
fn separate(intents: &[Intent], rendering: &Rendering) -> Vec<Hook> {
    let mut hooks: Vec<(&'static str, Vec<String>)> = Vec::new();
    let mut follows_link = false;
    for intent in intents {
        let link = words_of_link(&intent.what, rendering);
        let is_link = !link.is_empty();
        match &intent.what {
            What::Link(_) | What::Alias(_) if link.is_empty() => continue,
            What::Link(_) | What::Alias(_) => match hooks.last_mut() {
                Some((_, words)) if follows_link => words.extend(link),
                _ => hooks.push((CREATE_SYMLINKS, link)),
            },
            What::LibraryPath(libraries) => match folders(libraries) {
                folders if folders.is_empty() => {}
                folders => hooks.push((UPDATE_LDCACHE, [ldconfig(rendering), folders].concat())),
            },
            What::CudaCompat(compat) => hooks.push((ENABLE_CUDA_COMPAT, words_of_compat(compat))),
            What::DriverProc(shown) => {
                if shown.no_new_nodes {
                    hooks.push((DISABLE_NODE_MODIFICATION, Vec::new()));
                }
                if shown.devices == ProcDevices::Own {
                    hooks.push((FILTER_DRIVER_PROC, Vec::new()));
                }
            }
            What::EglProfile(_) => hooks.push((UPDATE_PROFILE, Vec::new())),
            What::Sockets(sockets) => hooks.push((MOUNT_SOCKETS, words_of_sockets(sockets))),
            What::Mode(file) => {
                let mode = repeated("--mode", [format!("{:o}", file.mode)]);
                let path = repeated("--path", [file.at.to_string()]);
                match hooks.iter_mut().find(|(name, _)| *name == CHMOD) {
                    Some((_, words)) if words.starts_with(&mode) => words.extend(path),
                    _ => hooks.push((CHMOD, [mode, path].concat())),
                }
            }
            What::Device(_) | What::Mount(_) | What::Env(_) => {}
        }
        follows_link = is_link;
    }
    hooks.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name));
    let program = &rendering.hooks.program;
    let hooks = hooks.into_iter();
    hooks
        .map(|(name, words)| program.hook(name, words))
        .collect()
}

/// Returns the words for a link; none for other intents.
fn words_of_link(what: &What, rendering: &Rendering) -> Vec<String> {
    let pair = match what {
        What::Link(link) => path_of(&link.at).map(|at| format!("{}::{at}", link.target.display())),
        What::Alias(Alias { at, of }) => path_of(of)
            // A link of the image can make both one path. Another program would try to replace the file, and fail.
            .filter(|of| rendering.hooks.is_ours || of.file_name() != at.file_name())
            .map(|of| format!("{of}::{at}")),
        _ => None,
    };
    repeated("--link", pair)
}

fn words_of_compat(compat: &CudaCompat) -> Vec<String> {
    let mut words = Vec::new();
    if !compat.host_driver.is_empty() {
        words.push(format!("--host-driver-version={}", compat.host_driver));
    } else if let Some(cuda) = &compat.host_cuda {
        words.push(format!("--host-cuda-version={cuda}"));
    }
    if let Some(root) = &compat.root {
        words.push(format!("--cuda-compat-container-root={root}"));
    }
    words
}

fn words_of_sockets(sockets: &Sockets) -> Vec<String> {
    let root: PathBuf = sockets.root.as_path().components().collect();
    let root = (root != Path::new("/")).then(|| root.display().to_string());
    let daemons = sockets.daemons.iter().map(|daemon| daemon.word());
    [
        repeated("--driver-root", root),
        repeated("--daemon", daemons),
    ]
    .concat()
}

fn folders(libraries: &LibraryPath) -> Vec<String> {
    let folders = libraries.directories.iter().filter_map(path_of);
    repeated("--folder", folders.map(ToString::to_string))
}

fn ldconfig(rendering: &Rendering) -> Vec<String> {
    repeated("--ldconfig-path", rendering.ldconfig.clone())
}

/// Returns the path of a place that does not depend on the image.
fn path_of(place: &Place) -> Option<&ContainerPath> {
    match place {
        Place::At(path) => Some(path),
        Place::Library(_) | Place::Library32(_) | Place::Program(_) | Place::XModule(_) => None,
    }
}

/// Puts an option before each value.
pub(crate) fn repeated(
    option: &str,
    values: impl IntoIterator<Item = impl Into<String>>,
) -> Vec<String> {
    let pairs = values.into_iter();
    let pairs = pairs.flat_map(|value| [option.to_owned(), value.into()]);
    pairs.collect()
}

fn text(path: &HostPath) -> String {
    path.as_path().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
