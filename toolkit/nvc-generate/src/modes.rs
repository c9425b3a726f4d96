//! Collects the devices of each mode.

mod imex;
mod jetson;
mod mig_caps;
pub(crate) mod nvml;
mod wsl;

use libnvc::host::nodes::IMEX_DIRECTORY;
use libnvc::host::{DriverInfo, DriverRoot, GpusAsked, is_wsl};
use libnvc::plan::{Intent, Item, What};
use libnvc::request::{Placement, Request};
use libnvc::{Error, ErrorKind, Result};
use nvc_policy::image::features::Feature;
use nvc_policy::platform;

use crate::content::{Content, FoundDevice};
use crate::driver::{self, nodes};
use crate::{Automatic, Files, Find, Mode, csv, devices, gated};

/// Nodes excluded from management containers.
const NOT_MANAGED: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

/// Finds the devices of a request; those of a Jetson by the lists of its operating system.
pub(super) fn find(options: &Find, request: &Request) -> Result<Content> {
    match find_unless_jetson(options, request.clone())? {
        Automatic::Found(content) => Ok(*content),
        Automatic::Jetson(driver) => jetson::with_driver(options, request, &driver),
    }
}

/// Works like [`find`], but leaves a Jetson to the caller.
pub(super) fn find_unless_jetson(options: &Find, request: Request) -> Result<Automatic<Content>> {
    // Some modes look for no more than nodes, and would say that there are none.
    let dev_root = driver::dev_root(options)?;
    if options.mode == Mode::Auto && options.files != Files::AtStart {
        return auto(options, request, &dev_root);
    }
    of_mode(options, request, &dev_root).map(Automatic::found)
}

fn of_mode(options: &Find, request: Request, dev_root: &DriverRoot) -> Result<Content> {
    let live = options.files == Files::AtStart;
    if live && !matches!(options.mode, Mode::Auto | Mode::Nvml) {
        let text =
            "a live specification is one of mode nvml: others have no files to find at start";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    match options.mode {
        // Only that mode finds files when a container starts.
        Mode::Auto => nvml::find(options, request, dev_root),
        Mode::Csv => jetson::find(options, &request),
        Mode::Gdrcopy => feature(options, Feature::Gdrcopy),
        Mode::Gds => feature(options, Feature::Gds),
        Mode::Imex => imex::find(options),
        Mode::Management => management(options),
        Mode::MigCaps => mig_caps::find(options, &request),
        Mode::Mofed => feature(options, Feature::Mofed),
        Mode::Nvml => nvml::find(options, request, dev_root),
        Mode::Nvswitch => feature(options, Feature::Nvswitch),
        Mode::Wsl => wsl::find(options, request),
    }
}

fn auto(options: &Find, request: Request, dev_root: &DriverRoot) -> Result<Automatic<Content>> {
    if is_wsl() {
        return wsl::find(options, request).map(Automatic::found);
    }
    let root = &options.driver_root;
    if options.library_search.is_empty() && platform::is_jetson_without_nvml(root) {
        let driver = csv::Driver::unasked(root, &options.query);
        return Ok(Automatic::Jetson(driver));
    }
    let planned = nvml::plan_unless_jetson(options, request, dev_root, platform::is_tegra(root))?;
    planned.and_then(|plan| Ok(nvml::content(options, plan)))
}

fn management(options: &Find) -> Result<Content> {
    let nodes = nodes(options);
    let is_managed = |name: &str| {
        name.starts_with("nvidia") && !NOT_MANAGED.iter().any(|out| name.starts_with(out))
    };
    let mut warnings = Vec::new();
    let mut paths = nodes.matching("/dev", is_managed, &mut warnings);
    let is_capability = |name: &str| name.starts_with("nvidia-cap");
    paths.extend(nodes.matching("/dev/nvidia-caps", is_capability, &mut warnings));
    let is_channel = |name: &str| name.starts_with("channel");
    paths.extend(nodes.matching(IMEX_DIRECTORY, is_channel, &mut warnings));
    let found = paths.iter().filter_map(|path| nodes.device(path).ok());
    let mut all: Vec<Intent> = found.collect();
    let version = driver::session(options, GpusAsked::None).and_then(|mut session| {
        session.ready()?;
        Ok(session.reported_versions()?.driver)
    });
    // Without a driver no node is the least of it.
    let found = driver::files(options, version.ok().as_deref())?;
    if all.is_empty() {
        let error = Error::new(ErrorKind::NotFound, "there is no device node of NVIDIA's");
        return Err(error
            .hint("nvidia-ctk system create-device-nodes --control-devices makes the driver's"));
    }
    devices::permissions(&mut all);
    let mut common = for_managers(found);
    warnings.extend(driver::on_host(&mut common, options)?);
    Ok(Content {
        devices: vec![FoundDevice::new("all", all)],
        common,
        warnings,
        ..Content::default()
    })
}

/// Returns the driver's part for management containers: without graphics, but with permission to create nodes and to see
/// all GPUs.
fn for_managers(mut driver: DriverInfo) -> Vec<Intent> {
    driver.graphics.clear();
    driver
        .files
        .retain(|file| file.path.file_name() != "nvidia-xconfig");
    let mut intents = Item::Whole(&driver).plan(&driver::request(Placement::AsHost));
    intents.retain(|intent| !matches!(intent.what, What::DriverProc(_) | What::EglProfile(_)));
    intents
}

fn feature(options: &Find, feature: Feature) -> Result<Content> {
    let (intents, warnings) = gated::intents(feature, &nodes(options), &options.driver_root);
    Ok(Content {
        devices: vec![FoundDevice::new("all", intents)],
        warnings,
        ..Content::default()
    })
}

#[cfg(test)]
mod tests {
    use libnvc::HostPath;
    use libnvc::host::{DriverFile, FileClass};
    use libnvc::plan::Mount;

    use super::*;

    #[test]
    fn managers_get_no_tool_for_displays() {
        let program = |name: &str| {
            let path = HostPath::new("/usr/bin").join(name);
            DriverFile::new(path, FileClass::Program)
        };
        let driver = DriverInfo {
            files: vec![program("nvidia-smi"), program("nvidia-xconfig")],
            ..DriverInfo::default()
        };
        let intents = for_managers(driver);
        let mounts = intents.iter().filter_map(|intent| match &intent.what {
            What::Mount(Mount { source, .. }) => Some(source.to_string()),
            _ => None,
        });
        assert_eq!(mounts.collect::<Vec<_>>(), ["/usr/bin/nvidia-smi"]);
    }
}
