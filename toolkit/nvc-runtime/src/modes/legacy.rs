//! Adds the prestart hook, and everything that the hook cannot add.

use std::collections::HashSet;
use std::time::SystemTime;

use libnvc::ErrorKind;
use libnvc::host::{Gpu, Inventory, is_wsl};
use libnvc::plan::{Intent, What};
use libnvc::request::{self, DeviceRequest, Placement, Request};
use libnvc::survey::Host;
use nvc_cdi::Edits;
use nvc_generate::{
    DriverPlan, Files, Find, Mode, NO_GPU, addresses_of_module, displays, driver_files, graphics,
    plan,
};
use nvc_oci::paths::clean;
use nvc_policy::image::{Devices, capabilities, mig_management};
use nvc_program::hook_names;
use nvc_program::messages::Level;
use serde_json::Value;

use crate::error::{Result, refused};
use crate::injection::{self, ResolvedDevices};
use crate::job::{self, GpuRequest, Job, nodes};
use crate::spec_edits;

/// Edits the specification of a GPU container.
pub(super) fn serve(mut job: Job<'_>) -> Result<()> {
    let GpuRequest {
        container, policy, ..
    } = job.request;
    let mut all = job.gated_features();
    // WSL has no display nodes, and the hook adds all files of the Windows driver.
    let wants_graphics =
        !is_wsl() && capabilities::asks_for_graphics(&container.environment, policy.supported);
    let devices = match resolve(&job, wants_graphics) {
        Ok(devices) => Some(devices),
        Err(error) => {
            let text = format!("devices are left to the hook: {}", error.message());
            // The hook reports the error.
            let level = match error.kind() {
                ErrorKind::NotFound => Level::Warning,
                _ => Level::Info,
            };
            job.log.write(level, &text);
            None
        }
    };
    if wants_graphics {
        let find = job::find(Mode::Nvml, job.config);
        let failed = |error: libnvc::Error| error.context("failed to create mounts discoverer");
        if devices.is_none() {
            let addresses = addresses(&mut job);
            all.extend(displays(&find, &addresses).map_err(failed)?);
        }
        let (files, warnings) = graphics(&find).map_err(failed)?;
        warnings.iter().for_each(|warning| job.warn(warning));
        all.extend(files);
    }
    let compat = cuda_compat(&mut job)?;
    let (nodes, mut resolved) = devices.unwrap_or_default();
    let chosen = &job.request.choice.devices;
    if *chosen == Devices::All && mig_management::is_requested(&container.environment) {
        // It also needs GPUs without MIG devices, and must name `all`, not each MIG device.
        resolved = ResolvedDevices {
            devices: vec!["all".into()],
            inventory: None,
        };
    }
    all.extend(nodes);
    all.retain(|intent| !is_named(job.spec.value(), &intent.what));
    spec_edits::give(&mut job, &all, compat)?;
    let hook = injection::hook_path(job.config);
    injection::add(job.spec, &hook, &resolved, job.told)
}

/// Returns true for a device that config.json has already: the engine has given the node the owner that the container
/// needs, and a rule. The hook keeps both.
fn is_named(spec: &Value, what: &What) -> bool {
    let What::Device(device) = what else {
        return false;
    };
    let mut nodes = spec["linux"]["devices"].as_array().into_iter().flatten();
    nodes.any(|node| {
        let path = node["path"].as_str().map(clean);
        path.as_deref() == device.at.as_path().to_str()
            && node["type"] == "c"
            && node["major"] == device.number.major
            && node["minor"] == device.number.minor
    })
}

/// Returns the PCI addresses of the requested GPUs without NVML. GPUs that only NVML can resolve have no DRM nodes then:
/// a guess could give the container another GPU's.
fn addresses(job: &mut Job<'_>) -> Vec<String> {
    let (addresses, unresolved) = addresses_of_module(&job.request.choice.devices);
    if !unresolved.is_empty() {
        let names = unresolved.join(", ");
        let text = format!(
            "no display nodes for GPU {names}: only NVML can identify it, and NVML cannot be queried"
        );
        job.warn(&text);
    }
    addresses
}

/// Returns the nodes of the chosen devices, and what the hook needs to know of them. The hook adds the nodes too, but
/// the container loses device rules that are not in config.json when systemd reloads, or when the container is updated.
///
/// # Errors
/// The driver cannot be queried, or the request cannot be granted; then the hook does everything.
fn resolve(job: &Job<'_>, wants_graphics: bool) -> Result<(Vec<Intent>, ResolvedDevices)> {
    let GpuRequest {
        container, policy, ..
    } = job.request;
    let ids = job.ids()?;
    let request = Request {
        capabilities: capabilities::of(&container.environment, policy.supported)
            .map_err(refused)?,
        policy: request::Policy {
            // Without a GPU's node the hook does everything: it can create it.
            demand_nodes: !ids.is_empty(),
            ..nvc_generate::policy(Placement::AsImage)
        },
        devices: DeviceRequest {
            ids,
            ..DeviceRequest::default()
        },
        ..Request::default()
    };
    let find = Find {
        files: Files::Omitted,
        // Graphics by default are for the hook alone, which adds no displays.
        displays: wants_graphics,
        all_may_be_none: false,
        ..job::find(Mode::Nvml, job.config)
    };
    let DriverPlan {
        host,
        request,
        plan,
    } = plan(&find, request)?;
    // A query may take longer than answers are valid.
    let time = SystemTime::now();
    // Not an error of the hook.
    if host.devices.gpus.is_empty()
        && host.devices.failed.is_empty()
        && request.devices.ids == ["all"]
    {
        return Err(refused(NO_GPU).with_kind(ErrorKind::NotFound));
    }
    if plan.devices.is_empty() && !request.devices.ids.is_empty() {
        return Err(refused("there is no device that a container could use"));
    }
    let parts = plan.devices.into_iter().flat_map(|part| part.intents);
    let mut intents: Vec<Intent> = parts.chain(plan.common).collect();
    // The hook does the rest.
    intents.retain(|intent| matches!(intent.what, What::Device(_) | What::Link(_)));
    let gpus = host.chosen.gpus.iter().map(|gpu| &gpu.uuid);
    let migs = host.chosen.migs.iter().map(|mig| &mig.device.uuid);
    let mut devices: Vec<String> = gpus.chain(migs).cloned().collect();
    devices.sort();
    let resolved = ResolvedDevices {
        inventory: inventory(host, &devices, time),
        devices,
    };
    Ok((intents, resolved))
}

/// Returns NVML's answers about the chosen devices, and about the GPUs of chosen MIG devices.
fn inventory(host: Host, chosen: &[String], time: SystemTime) -> Option<Inventory> {
    let chosen: HashSet<&String> = chosen.iter().collect();
    let mut gpus: Vec<Gpu> = host.devices.gpus;
    for gpu in &mut gpus {
        gpu.mig_devices.retain(|mig| chosen.contains(&mig.uuid));
    }
    gpus.retain(|gpu| chosen.contains(&gpu.uuid) || !gpu.mig_devices.is_empty());
    Inventory::new(&host.driver.versions, &gpus, time)
}

/// Returns the hook for the image's CUDA compatibility libraries, if configured.
fn cuda_compat(job: &mut Job<'_>) -> Result<Option<Edits>> {
    let config = job.config;
    let is_wanted = config.runtime.legacy_cuda_compat_mode == "hook"
        && !config.features.disable_cuda_compat_lib_hook;
    if !is_wanted {
        return Ok(None);
    }
    let version = driver_files::version(&nodes(config).root)
        .map_err(|error| error.context("failed to get driver version"))?;
    let version = format!("--host-driver-version={version}");
    let hook = job
        .hook_program()?
        .hook(hook_names::ENABLE_CUDA_COMPAT, [version]);
    Ok(Some(Edits {
        hooks: vec![hook],
        ..Edits::default()
    }))
}
