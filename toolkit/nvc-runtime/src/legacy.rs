//! Adds the prestart hook, and everything that the hook cannot add.

use std::collections::HashSet;
use std::time::SystemTime;

use libnvc::host::{Gpu, Inventory};
use libnvc::messages::Level;
use nvc_cdi::Edits;
use nvc_generate::hook_program::HookProgram;
use nvc_generate::nodes::Nodes;
use nvc_generate::{Driver, Files, Mode, Naming, Options};
use nvc_generate::{driver_files, gated};
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::image::{Container, Devices, Policy, Wish, capabilities, features};

use crate::automatic;
use crate::create::EditError;
use crate::give::give;
use crate::hook_program;
use crate::injection::{self, Resolved};
use crate::log::Log;

/// Edits the specification of a GPU container.
pub(crate) fn modify(
    spec: &mut Spec,
    wish: &Wish,
    container: &Container,
    policy: &Policy,
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    let mut all = gated_features(container, policy, config, log);
    let found = resolve(wish, config, log);
    if capabilities::asks_for_graphics(&container.environment, policy.supported) {
        let addresses = match found.as_ref().and_then(|found| found.addresses.clone()) {
            Some(addresses) => addresses,
            None => addresses_of_module(wish, log),
        };
        let options = automatic::options(Mode::Nvml, Vec::new(), config);
        let displays = nvc_generate::displays(&options, &addresses)
            .map_err(|error| EditError::of("failed to create mounts discoverer: ", &error))?;
        all.push(displays);
    }
    all.extend(cuda_compat(config)?);
    let found = found.unwrap_or_default();
    all.push(found.nodes);
    give(spec, &mut all)?;
    injection::add(spec, &injection::hook_path(config), &found.resolved)?;
    Ok(())
}

/// Returns the PCI addresses of the requested GPUs without NVML. GPUs that only NVML can resolve have no DRM nodes then:
/// a guess could give the container another GPU's.
fn addresses_of_module(wish: &Wish, log: &mut Log) -> Vec<String> {
    let (addresses, unresolved) = nvc_generate::addresses_of_module(&wish.devices);
    if !unresolved.is_empty() {
        let names = unresolved.join(", ");
        let text = format!(
            "no display nodes for GPU {names}: only NVML knows which GPU that is, and it cannot be queried"
        );
        log.write(Level::Warning, &text);
    }
    addresses
}

/// The chosen devices.
#[derive(Default)]
struct Found {
    nodes: Edits,
    /// What the hook needs to know of them.
    resolved: Resolved,
    /// PCI addresses of the GPUs among them; None if NVML does not say.
    addresses: Option<Vec<String>>,
}

/// Returns the chosen devices with their nodes. The hook adds the nodes too, but the container loses device rules that
/// are not in config.json when systemd reloads, or when the container is updated. Returns None if the driver cannot be
/// queried; then the hook does everything.
fn resolve(wish: &Wish, config: &Config, log: &mut Log) -> Option<Found> {
    let ids: Vec<String> = match &wish.devices {
        Devices::None => vec!["none".into()],
        some => some.names().into_iter().map(str::to_owned).collect(),
    };
    let options = Options {
        naming: vec![Naming::Uuid],
        files: Files::Omitted,
        ..automatic::options(Mode::Nvml, ids, config)
    };
    let time = SystemTime::now();
    let made = match nvc_generate::generate(&options) {
        Ok(made) => made,
        Err(error) => {
            let text = format!("devices are left to the hook: {}", error.message());
            // The hook reports the error.
            log.write(Level::Info, &text);
            return None;
        }
    };
    let mut edits = Edits::default();
    let mut devices = Vec::new();
    let mut add = |part: Edits| {
        let nodes = part.device_nodes.into_iter();
        // DRM nodes are only for containers that request graphics.
        let nodes = nodes.filter(|node| node.path.starts_with("/dev/nvidia"));
        edits.device_nodes.extend(nodes);
    };
    for device in made.spec.devices {
        if device.name.starts_with("GPU-") || device.name.starts_with("MIG-") {
            devices.push(device.name);
        }
        add(device.container_edits);
    }
    add(made.spec.container_edits);
    let driver = made.driver;
    // A MIG device has no display: the nodes belong to the whole GPU.
    let addresses = driver.as_ref().map(|driver| {
        let chosen = driver.gpus.iter().filter(|gpu| devices.contains(&gpu.uuid));
        chosen.map(|gpu| gpu.busid.clone()).collect()
    });
    let resolved = Resolved {
        inventory: driver.and_then(|driver| inventory(driver, &devices, time)),
        devices,
    };
    Some(Found {
        nodes: edits,
        resolved,
        addresses,
    })
}

/// Returns NVML's answers about the chosen devices, and about the GPUs of chosen MIG devices.
fn inventory(driver: Driver, chosen: &[String], time: SystemTime) -> Option<Inventory> {
    let chosen: HashSet<&String> = chosen.iter().collect();
    let mut gpus: Vec<Gpu> = driver.gpus;
    for gpu in &mut gpus {
        gpu.mig_devices.retain(|mig| chosen.contains(&mig.uuid));
    }
    gpus.retain(|gpu| chosen.contains(&gpu.uuid) || !gpu.mig_devices.is_empty());
    Inventory::new(driver.versions, &gpus, time)
}

/// Returns the devices with their own variables.
///
/// Unlike a specification of all devices, they do not replace the hook, which still adds the GPUs.
pub(crate) fn gated_features(
    container: &Container,
    policy: &Policy,
    config: &Config,
    log: &mut Log,
) -> Vec<Edits> {
    let nodes = tree_of_nodes(config);
    let (asked, ignored) = features::of(container, policy);
    if let Some(warning) = ignored {
        log.write(Level::Warning, &warning);
    }
    let mut all = Vec::new();
    for feature in asked {
        let (edits, refused) = gated::edits(feature, &nodes, &nodes.root);
        for why in refused {
            let variable = feature.variable();
            log.write(Level::Warning, &format!("{variable}: left out: {why}"));
        }
        all.push(edits);
    }
    all
}

/// Returns the hook for the image's CUDA compatibility libraries, if configured.
fn cuda_compat(config: &Config) -> Result<Option<Edits>, EditError> {
    let is_wanted = config.runtime.legacy_cuda_compat_mode == "hook"
        && !config.features.disable_cuda_compat_lib_hook;
    if !is_wanted {
        return Ok(None);
    }
    let version = driver_files::version(&tree_of_nodes(config).root)
        .map_err(|what| format!("failed to get driver version: {what}"))?;
    let version = format!("--host-driver-version={version}");
    let path = hook_program::of(config).to_string_lossy().into_owned();
    let hook = HookProgram { path }.hook("enable-cuda-compat", [version]);
    Ok(Some(Edits {
        hooks: vec![hook],
        ..Edits::default()
    }))
}

/// Returns the root of the device nodes.
pub(crate) fn tree_of_nodes(config: &Config) -> Nodes {
    let root = match config.cli.root.as_str() {
        "" => "/",
        root => root,
    };
    let groups = !config.features.no_additional_gids_for_device_nodes;
    Nodes::new(root.into(), groups)
}
