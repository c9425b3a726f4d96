//! Plans the GPUs and MIG devices that NVML lists.

use libnvc::Result;
use libnvc::host::{
    CharDrivers, DeviceInfo, DriverInfo, DriverRoot, DriverSession, GpusAsked, nodes,
};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{self, Plan};
use libnvc::request::Request;
use libnvc::survey::Host;
use nvc_policy::{platform, session};

use crate::content::{Content, FoundDevice};
use crate::exposed::Exposure;
use crate::{Automatic, Files, Find, csv, devices, driver};

/// The warning if `all` is nothing.
pub const NO_GPU: &str = "NVML lists no GPU: \"all\" gives the container what \"none\" gives";

/// A plan, and what it was made of.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// The driver, the GPUs that NVML was asked about and the chosen devices.
    pub host: Host,
    pub request: Request,
    pub plan: Plan,
}

/// Queries NVML, selects the requested devices and plans them. Sources are paths of the host.
///
/// # Errors
/// The driver does not respond, or the devices' forms or names are unknown; those of [`libnvc::plan::plan`], with their
/// phase.
pub fn plan(options: &Find, request: Request) -> Result<DriverPlan> {
    plan_in(options, request, &driver::dev_root(options)?)
}

fn plan_in(options: &Find, request: Request, dev_root: &DriverRoot) -> Result<DriverPlan> {
    let mut session = driver::session(options, GpusAsked::Named(request.devices.ids.clone()))?;
    // While NVML is busy: its version is almost always that of the libraries.
    let files = early_files(options);
    session.ready()?;
    plan_answered(options, request, dev_root, session, files)
}

/// Works like [`plan`], unless the answers are those of a Jetson.
pub(super) fn plan_unless_jetson(
    options: &Find,
    request: Request,
    dev_root: &DriverRoot,
    has_tegra_files: bool,
) -> Result<Automatic<DriverPlan>> {
    let mut session = driver::session(options, GpusAsked::Named(request.devices.ids.clone()))?;
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
    plan_answered(options, request, dev_root, session, files).map(Automatic::found)
}

/// Returns the driver's files by the version in their names.
fn early_files(options: &Find) -> Option<Result<DriverInfo>> {
    (options.files == Files::Listed).then(|| driver::files(options, None))
}

fn plan_answered(
    options: &Find,
    mut request: Request,
    dev_root: &DriverRoot,
    mut session: DriverSession,
    files: Option<Result<DriverInfo>>,
) -> Result<DriverPlan> {
    let info = session::devices(&mut session)?;
    let version = session.reported_versions().ok();
    let version = version.map(|versions| versions.driver);
    let warning = none_of_all(options, &info, &mut request);
    let drivers = CharDrivers::discover();
    let mut chosen = devices::choose(options, &request, &info, dev_root, &drivers)?;
    chosen.missing.extend(warning);
    let mut driver = match (files, version) {
        (None, _) => DriverInfo::default(),
        (Some(Ok(files)), Some(version)) if files.versions.driver == version => files,
        (Some(_), Some(version)) => driver::files(options, Some(&version))?,
        // The driver does not report its version.
        (Some(files), None) => files?,
    };
    driver.devices = nodes::of_specification(dev_root, &drivers, &mut chosen.missing);
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
    let parts = plan.devices.iter_mut().map(|part| &mut part.intents);
    for intents in parts.chain([&mut plan.common]) {
        let warnings = driver::on_host(intents, options)?;
        host.chosen.missing.extend(warnings);
    }
    if options.files == Files::AtStart {
        Exposure::of_roots(&driver::root(options), options)?;
    }
    Ok(DriverPlan {
        host,
        request,
        plan,
    })
}

/// Clears a request for `all` on a machine without a GPU, if the caller allows that; returns the warning.
///
/// Every CUDA image asks for `all`. GPUs that exist and fail are another case, as is one that is named.
fn none_of_all(options: &Find, info: &DeviceInfo, request: &mut Request) -> Option<String> {
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

pub(super) fn find(options: &Find, request: Request, dev_root: &DriverRoot) -> Result<Content> {
    Ok(content(options, plan_in(options, request, dev_root)?))
}

/// Returns the devices of a plan.
pub(super) fn content(options: &Find, found: DriverPlan) -> Content {
    let DriverPlan {
        host,
        request,
        plan,
    } = found;
    let parts = plan.devices.into_iter();
    let devices: Vec<FoundDevice> = if request.devices.ids.is_empty() {
        vec![devices::empty_device()]
    } else {
        parts.map(devices::found).collect()
    };
    let parts = if options.coherence {
        devices::by_coherence(&host.devices, &devices)
    } else {
        Vec::new()
    };
    let mut warnings = host.chosen.missing.clone();
    if options.files == Files::Listed {
        warnings.extend(host.driver.missing_libraries(request.capabilities));
    }
    Content {
        devices,
        common: plan.common,
        parts,
        warnings,
        host: Some(host),
    }
}
