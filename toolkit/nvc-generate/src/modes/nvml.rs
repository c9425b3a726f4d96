//! Plans the GPUs and MIG devices that NVML lists.

use std::path::Path;

use libnvc::Result;
use libnvc::host::{CharDrivers, DeviceInfo, DriverInfo, DriverSession, nodes};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{self, Plan};
use libnvc::request::Request;
use libnvc::survey::Host;
use nvc_policy::{platform, session};
use nvc_program::hook_names;

use crate::content::Content;
use crate::document::PARTS;
use crate::draft::{DraftDevice, DraftHook};
use crate::exposed::Exposure;
use crate::{Automatic, Files, Options, csv, devices, driver, render};

/// The warning if `all` is nothing.
pub const NO_GPU: &str = "NVML lists no GPU: \"all\" gives the container what \"none\" gives";

/// A plan, and what it was made of.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// The driver, all its GPUs and the chosen devices.
    pub host: Host,
    pub request: Request,
    pub plan: Plan,
}

/// Queries NVML, selects the requested devices and plans them, for an unknown image.
///
/// # Errors
/// The driver does not respond, or the devices' forms or names are unknown; those of [`libnvc::plan::plan`], with their
/// phase.
pub fn plan(options: &Options, request: Request) -> Result<DriverPlan> {
    let mut session = driver::session(options)?;
    // While NVML is busy: its version is almost always that of the libraries.
    let files = early_files(options);
    session.ready()?;
    plan_answered(options, request, session, files)
}

/// Works like [`plan`], unless the answers are those of a Jetson.
pub(super) fn plan_unless_jetson(
    options: &Options,
    request: Request,
    has_tegra_files: bool,
) -> Result<Automatic<DriverPlan>> {
    let mut session = driver::session(options)?;
    // A Jetson's files are in its lists.
    let files = (!has_tegra_files).then(|| early_files(options)).flatten();
    let listed = platform::listed(&mut session);
    if platform::is_jetson(has_tegra_files, &listed) {
        let root = &options.driver_root;
        let driver = csv::Driver::answered(root, &options.query, &mut session, listed);
        return Ok(Automatic::Jetson(driver));
    }
    listed?;
    let files = files.or_else(|| early_files(options));
    plan_answered(options, request, session, files).map(Automatic::found)
}

/// Returns the driver's files by the version in their names.
fn early_files(options: &Options) -> Option<Result<DriverInfo>> {
    (options.files == Files::Listed).then(|| driver::files(options, None))
}

fn plan_answered(
    options: &Options,
    mut request: Request,
    mut session: DriverSession,
    files: Option<Result<DriverInfo>>,
) -> Result<DriverPlan> {
    let info = session::devices(&mut session)?;
    let version = session.reported_versions().ok();
    let version = version.map(|versions| versions.driver);
    let warning = none_of_all(options, &info, &mut request);
    let dev_root = driver::dev_root(options)?;
    let drivers = CharDrivers::discover();
    let ids = &request.devices.ids;
    let mut chosen = devices::choose(options, ids, &info, &dev_root, &drivers)?;
    chosen.missing.extend(warning);
    let mut driver = match (files, version) {
        (None, _) => DriverInfo::default(),
        (Some(Ok(files)), Some(version)) if files.versions.driver == version => files,
        (Some(_), Some(version)) => driver::files(options, Some(&version))?,
        // The driver does not report its version.
        (Some(files), None) => files?,
    };
    driver.devices = nodes::of_specification(&dev_root, &drivers, &mut chosen.missing);
    match session.versions() {
        Ok(versions) => driver.versions = versions,
        // There is nothing to compare.
        Err(_) => request.requirements.clear(),
    }
    if options.files != Files::Listed {
        request.policy.cuda_compat = CudaCompatMode::Disabled;
    }
    let mut host = Host::new(driver::root(options), driver, info, chosen);
    let mut plan = plan::plan(&request, &host)?;
    let warnings = Exposure::of_plan(&mut plan, options)?;
    if options.files == Files::AtStart {
        Exposure::of_roots(options)?;
    }
    host.chosen.missing.extend(warnings);
    Ok(DriverPlan {
        host,
        request,
        plan,
    })
}

/// Clears a request for `all` on a machine without a GPU, if the caller allows that; returns the warning.
///
/// Every CUDA image asks for `all`. GPUs that exist and fail are another case, as is one that is named.
fn none_of_all(options: &Options, info: &DeviceInfo, request: &mut Request) -> Option<String> {
    let ids = &request.devices.ids;
    let is_all = !ids.is_empty() && ids.iter().all(|id| id.eq_ignore_ascii_case("all"));
    let is_empty = info.gpus.is_empty() && info.failed.is_empty();
    if !options.all_may_be_none || !is_all || !is_empty {
        return None;
    }
    request.devices.ids.clear();
    request.policy.demand_nodes = false;
    Some(NO_GPU.into())
}

pub(super) fn find(options: &Options, request: Request) -> Result<Content> {
    Ok(content(options, plan(options, request)?))
}

/// Renders a plan.
pub(super) fn content(options: &Options, found: DriverPlan) -> Content {
    let DriverPlan {
        host,
        request,
        plan,
    } = found;
    let rendered = render::plan(&plan, options);
    let named = |part| devices::named(options, part);
    let devices: Vec<DraftDevice> = if request.devices.ids.is_empty() {
        vec![devices::empty_device()]
    } else {
        rendered.devices.into_iter().flat_map(named).collect()
    };
    let parts = if options.flags.coherent_annotations {
        by_coherence(options, &host.devices, &devices)
    } else {
        Vec::new()
    };
    let mut common = rendered.common;
    if options.files == Files::AtStart {
        common.hooks.insert(0, live_hook(options));
    }
    let mut warnings = host.chosen.missing.clone();
    if options.files == Files::Listed {
        warnings.extend(host.driver.missing_libraries(request.capabilities));
    }
    Content {
        devices,
        common,
        parts,
        warnings,
        host: Some(host),
    }
}

/// Returns the devices of each kind of memory that this machine has.
fn by_coherence(
    options: &Options,
    info: &DeviceInfo,
    devices: &[DraftDevice],
) -> Vec<(&'static str, Vec<DraftDevice>)> {
    let parts = devices::by_coherence(options, info, devices);
    let parts = PARTS.into_iter().zip(parts);
    parts.filter(|(_, devices)| !devices.is_empty()).collect()
}

/// Returns the part of the merged hook that finds the driver's files.
fn live_hook(options: &Options) -> DraftHook {
    let mut words = vec!["--discover".to_owned()];
    let mut add = |option: &str, value: &str| words.extend([option.to_owned(), value.to_owned()]);
    let root = driver::root(options);
    if root != Path::new("/") {
        add("--driver-root", &root.to_string_lossy());
    }
    for (option, paths) in [
        ("--library-search-path", &options.library_search),
        ("--config-search-path", &options.config_search),
    ] {
        for path in paths {
            add(option, &path.to_string_lossy());
        }
    }
    if let Some(path) = &options.ldconfig {
        add("--ldconfig-path", path);
    }
    for hook in [
        hook_names::CREATE_SYMLINKS,
        hook_names::ENABLE_CUDA_COMPAT,
        hook_names::UPDATE_LDCACHE,
    ] {
        if options.hooks.is_off(hook) {
            add("--without", hook);
        }
    }
    let flags = [
        (
            "--no-ipc",
            options.flags.no_ipc || options.hooks.is_off(hook_names::MOUNT_SOCKETS),
        ),
        ("--no-compat32", options.flags.no_compat32),
        (
            "--explicit-driver-libraries",
            options.flags.explicit_driver_libraries,
        ),
    ];
    let given = flags.iter().filter(|(_, given)| *given);
    words.extend(given.map(|(option, _)| option.to_string()));
    DraftHook::new("discover", words)
}
