//! Adds a Jetson's GPU to a container, by the file lists of its operating system.

use std::path::Path;

use nvc_toolkit::cause;
use nvc_toolkit::cdi::{Edits, Hook};
use nvc_toolkit::config::Config;
use nvc_toolkit::csv::{Tree, compat, list, requirements};
use nvc_toolkit::image::{self, Container, Devices, Policy, Wish};
use nvc_toolkit::oci::spec::Spec;
use nvc_toolkit::record::Level;

use crate::automatic::VOID;
use crate::create::EditError;
use crate::give::give;
use crate::legacy::{hook_of, hook_program, tree_of_nodes};
use crate::log::Log;

/// A Jetson has it if its display driver, or that of another GPU, is loaded.
const DRIVER_PROC: &str = "/proc/driver/nvidia";

/// The variable by which an image requests more lists.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";

/// Adds the files in the lists.
pub(crate) fn modify(
    spec: &mut Spec,
    wish: &Wish,
    container: &Container,
    policy: &Policy,
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    let environment = &container.environment;
    let demands = image::requirements::of(environment, config.disable_require)
        .map_err(|error| error.to_string())?;
    requirements::check(&demands, &requirements::Facts::default())?;
    let with_devices = asks_for_the_gpu(&wish.devices)?;
    let mut given = crate::legacy::gated_features(container, policy, config, log);
    for edits in &mut given {
        edits.env.push(VOID.into());
    }
    // More lists mean more files and nodes of the host.
    let wants_all = environment.get(JETPACK) == Some("csv-mounts=all");
    let all = wants_all && policy.accepts_environment_of(container);
    if wants_all && !all {
        let text =
            format!("Ignoring {JETPACK} of an unprivileged container: only the usual lists count");
        log.write(Level::Warning, &text);
    }
    let mut files = files(config, all, with_devices, log)?;
    files.hooks.extend(hides_other_gpus(config));
    given.push(files);
    give(spec, &mut given).map_err(Into::into)
}

/// Returns false if no device was requested; fails for a device other than the only GPU.
fn asks_for_the_gpu(devices: &Devices) -> Result<bool, EditError> {
    let names = match devices {
        Devices::None => return Ok(false),
        Devices::All => return Ok(true),
        Devices::Names(names) => names,
    };
    let Some(other) = names.iter().find(|name| *name != "0" && *name != "all") else {
        return Ok(true);
    };
    Err(EditError::with_hint(
        format!("failed to generate CDI spec for mode \"csv\": no device {other}"),
        "the GPU of this machine is 0, or all",
    ))
}

/// Returns the edits for the files in the lists.
fn files(
    config: &Config,
    all: bool,
    with_devices: bool,
    log: &mut Log,
) -> Result<Edits, EditError> {
    let directory = Path::new(&config.runtime.csv_mount_spec_path);
    let failed = |error: std::io::Error, path: &Path| {
        format!("failed to read {}: {}", path.display(), cause::text(&error))
    };
    let lists = list::in_directory(directory, all).map_err(|error| failed(error, directory))?;
    if lists.is_empty() {
        return Ok(Edits {
            env: vec![VOID.into()],
            ..Edits::default()
        });
    }
    let mut entries = Vec::new();
    for file in &lists {
        let text = std::fs::read(file).map_err(|error| failed(error, file))?;
        entries.extend(list::parse(&String::from_utf8_lossy(&text)));
    }
    let nodes = tree_of_nodes(config);
    let compat = match with_devices && !config.features.disable_cuda_compat_lib_hook {
        true => compat::arguments(&nodes.root, &config.runtime.csv_compat_container_root),
        false => Vec::new(),
    };
    let tree = Tree {
        root: nodes.root.clone(),
        nodes,
        hook: hook_program(config),
        compat,
    };
    let (files, warnings) = tree.edits(&entries, with_devices);
    for warning in warnings {
        log.write(Level::Warning, &warning);
    }
    Ok(files)
}

/// Returns the hooks that isolate the container in procfs, as in the other modes.
fn hides_other_gpus(config: &Config) -> Vec<Hook> {
    if !Path::new(DRIVER_PROC).is_dir() {
        return Vec::new();
    }
    let names = ["disable-device-node-modification", "filter-driver-proc"];
    names.map(|name| hook_of(config, name, [])).to_vec()
}
