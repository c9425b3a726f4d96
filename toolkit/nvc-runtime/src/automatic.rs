//! Adds GPUs by a CDI specification that is generated for the container and never written to a file.

use libnvc::messages::Level;
use nvc_cdi::{Device, Edits};
use nvc_generate::{Driver, Flags, Made, Mode, Naming, Options};
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::image::{Container, Policy, devices};

use crate::create::EditError;
use crate::demands;
use crate::give::give;
use crate::hook_program;
use crate::legacy::{gated_features, tree_of_nodes};
use crate::log::Log;
use crate::merged;

/// Tells other programs not to touch the container; every specification contains it.
pub(crate) const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// The feature flag for one GPU in mode csv.
pub(crate) const SINGLE_CSV_DEVICE: &str = "disable-multiple-csv-devices";

/// The node without which no GPU can be used; /dev/dxg under WSL2.
const CONTROL: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

/// Adds GPUs, and the other devices that the container requests.
pub(crate) fn modify(
    spec: &mut Spec,
    ids: &[&str],
    container: &Container,
    policy: &Policy,
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    // A mount's name can equal a word of the variable, but is not a device.
    let ids: Vec<String> = match ids.contains(&"none") {
        true => vec!["none".into()],
        false => ids.iter().map(|&id| id.to_owned()).collect(),
    };
    let wants_gpus = ids.first().is_some_and(|id| id != "none");
    let limit = demands::limit(container, config)?;
    let (mut gpus, driver) = made(Mode::Auto, ids, wants_gpus, config, log)?;
    demands::check(container, config, driver.as_ref(), &gpus, log)?;
    if let Some(limit) = limit {
        demands::restrict(&mut gpus, limit);
    }
    let mut given = vec![gpus];

    for mut edits in gated_features(container, policy, config, log) {
        edits.env.push(VOID.into());
        given.push(edits);
    }
    let (channels, ignored) = devices::imex_channels(container, policy);
    if let Some(warning) = ignored {
        log.write(Level::Warning, &warning);
    }
    if !channels.is_empty() {
        given.push(made(Mode::Imex, channels, false, config, log)?.0);
    }
    merged::merge_if_ours(&mut given, &hook_program::of(config));
    give(spec, &mut given).map_err(|what| format!("failed to inject CDI devices: {what}").into())
}

/// Returns the edits for devices of one mode, each device's own before the common ones, and NVML's facts about the
/// driver, if it was queried.
fn made(
    mode: Mode,
    ids: Vec<String>,
    with_nodes: bool,
    config: &Config,
    log: &mut Log,
) -> Result<(Edits, Option<Driver>), EditError> {
    let name = match mode {
        Mode::Imex => "imex",
        _ => "auto",
    };
    let failed = |error: &libnvc::Error| {
        let what =
            "failed to create the automatic CDI modifier: failed to generate CDI spec for mode";
        EditError::of(&format!("{what} \"{name}\": "), error)
    };
    let Made {
        spec,
        warnings,
        driver,
        ..
    } = nvc_generate::generate(&options(mode, ids, config)).map_err(|error| failed(&error))?;
    for warning in &warnings {
        log.write(Level::Warning, warning);
    }
    if with_nodes {
        for device in &spec.devices {
            check_node(device, &warnings)?;
        }
        let control = &spec.container_edits.device_nodes;
        let has_control = spec
            .devices
            .iter()
            .any(|device| has(&device.container_edits, &CONTROL))
            || control
                .iter()
                .any(|node| CONTROL.contains(&node.path.as_str()));
        if !has_control {
            return Err(EditError::with_hint(
                format!("the driver's node {} is missing", CONTROL[0]),
                "nvidia-modprobe or nvidia-ctk system create-device-nodes --control-devices makes it",
            ));
        }
    }
    let mut edits = Edits::default();
    for device in &spec.devices {
        edits.append(&device.container_edits);
    }
    edits.append(&spec.container_edits);
    Ok((edits, driver))
}

fn has(edits: &Edits, paths: &[&str]) -> bool {
    let mut nodes = edits.device_nodes.iter();
    nodes.any(|node| paths.contains(&node.path.as_str()))
}

/// Rejects a container that would get the driver's libraries but no device.
fn check_node(device: &Device, warnings: &[String]) -> Result<(), EditError> {
    let is_gpu = |path: &str| {
        path == "/dev/dxg"
            || path.strip_prefix("/dev/nvidia").is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
            })
    };
    let mut nodes = device.container_edits.device_nodes.iter();
    if nodes.any(|node| is_gpu(&node.path)) {
        return Ok(());
    }
    let name = &device.name;
    let text = format!("GPU {name} has no node in /dev: {}", warnings.join("; "));
    let hint = "nvidia-modprobe or nvidia-ctk system create-device-nodes makes it";
    Err(EditError::with_hint(text, hint))
}

/// Returns the options of the generated specifications.
pub(crate) fn options(mode: Mode, ids: Vec<String>, config: &Config) -> Options {
    let nodes = tree_of_nodes(config);
    let runtime = &config.runtime;
    let flag = |name: &str| runtime.jit_feature_flags.iter().any(|flag| flag == name);
    let variable = |name: &str| {
        let value = std::env::var_os(name).unwrap_or_default();
        value.to_string_lossy().into_owned()
    };
    let program = hook_program::of(config).to_string_lossy().into_owned();
    let mut options = Options {
        driver_root: nodes.root.clone(),
        dev_root: nodes.root,
        naming: vec![Naming::Index],
        ids,
        no_all: true,
        vendor: "runtime.nvidia.com".into(),
        gids: true,
        flags: Flags {
            explicit_driver_libraries: flag("enable-explicit-driver-libraries"),
            coherent_annotations: false,
            no_additional_gids: !nodes.groups || flag("no-additional-gids-for-device-nodes"),
            no_ipc: flag("disable-ipc-discoverer"),
            single_csv_device: flag(SINGLE_CSV_DEVICE),
        },
        path: variable("PATH"),
        data_dirs: variable("XDG_DATA_DIRS"),
        // Its hooks are merged later, with those of features and channels.
        ..Options::new(mode, program)
    };
    options.hooks.disabled = runtime.jit_disable_hooks.iter().cloned().collect();
    options
}
