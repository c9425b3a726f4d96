//! Collects the devices of each mode.

mod imex;
mod jetson;
mod mig_caps;
pub(crate) mod nvml;
mod wsl;

use std::path::Path;

use libnvc::host::DriverInfo;
use libnvc::plan::{Item, What};
use libnvc::request::Request;
use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::Edits;
use nvc_policy::image::features::Feature;
use nvc_policy::platform;
use nvc_program::hook_names;

use crate::content::Content;
use crate::draft::{Draft, DraftDevice};
use crate::driver::{self, nodes};
use crate::exposed::Exposure;
use crate::{Automatic, Files, Mode, Options, csv, devices, gated, render};

/// Nodes excluded from management containers.
const NOT_MANAGED: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

/// Finds the devices of a request; those of a Jetson by the lists of its operating system.
pub(super) fn find(options: &Options, request: &Request) -> Result<Content> {
    match find_unless_jetson(options, request.clone())? {
        Automatic::Found(content) => Ok(*content),
        Automatic::Jetson(driver) => jetson::with_driver(options, request, &driver),
    }
}

/// Works like [`find`], but leaves a Jetson to the caller.
pub(super) fn find_unless_jetson(
    options: &Options,
    request: Request,
) -> Result<Automatic<Content>> {
    if options.mode == Mode::Auto && options.files != Files::AtStart {
        return auto(options, request);
    }
    of_mode(options, request).map(Automatic::found)
}

fn of_mode(options: &Options, request: Request) -> Result<Content> {
    let live = options.files == Files::AtStart;
    if live && !matches!(options.mode, Mode::Auto | Mode::Nvml) {
        let text =
            "a live specification is one of mode nvml: others have no files to find at start";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    match options.mode {
        // Only that mode finds files when a container starts.
        Mode::Auto => nvml::find(options, request),
        Mode::Csv => jetson::find(options, &request),
        Mode::Gdrcopy => feature(options, Feature::Gdrcopy),
        Mode::Gds => feature(options, Feature::Gds),
        Mode::Imex => imex::find(options),
        Mode::Management => management(options),
        Mode::MigCaps => mig_caps::find(options, &request),
        Mode::Mofed => feature(options, Feature::Mofed),
        Mode::Nvml => nvml::find(options, request),
        Mode::Nvswitch => feature(options, Feature::Nvswitch),
        Mode::Wsl => wsl::find(options, request),
    }
}

fn auto(options: &Options, request: Request) -> Result<Automatic<Content>> {
    if Path::new("/dev/dxg").exists() {
        return wsl::find(options, request).map(Automatic::found);
    }
    let root = &options.driver_root;
    if options.library_search.is_empty() && platform::is_jetson_without_nvml(root) {
        let driver = csv::Driver::unasked(root, &options.query);
        return Ok(Automatic::Jetson(driver));
    }
    let planned = nvml::plan_unless_jetson(options, request, platform::is_tegra(root))?;
    planned.and_then(|plan| Ok(nvml::content(options, plan)))
}

fn management(options: &Options) -> Result<Content> {
    let nodes = nodes(options);
    let mut edits = Edits::default();
    let is_managed = |name: &str| {
        name.starts_with("nvidia") && !NOT_MANAGED.iter().any(|out| name.starts_with(out))
    };
    let mut warnings = Vec::new();
    let mut paths = nodes.matching("/dev", is_managed, &mut warnings);
    let is_capability = |name: &str| name.starts_with("nvidia-cap");
    paths.extend(nodes.matching("/dev/nvidia-caps", is_capability, &mut warnings));
    let is_channel = |name: &str| name.starts_with("channel");
    paths.extend(nodes.matching(imex::DIRECTORY, is_channel, &mut warnings));
    paths.retain(|path| nodes.add(path, &mut edits).is_ok());
    if paths.is_empty() {
        let error = Error::new(ErrorKind::NotFound, "there is no device node of NVIDIA's");
        return Err(error
            .hint("nvidia-ctk system create-device-nodes --control-devices makes the driver's"));
    }
    let version = driver::session(options).and_then(|mut session| {
        session.ready()?;
        Ok(session.reported_versions()?.driver)
    });
    let found = driver::files(options, version.ok().as_deref())?;
    let mut all = Draft::from(edits);
    devices::permissions(options, &mut all);
    Ok(Content {
        devices: vec![DraftDevice::new("all", all)],
        common: for_managers(found, options, &mut warnings)?,
        warnings,
        ..Content::default()
    })
}

/// Returns the driver's edits for management containers: without graphics, but with permission to create nodes and see
/// all GPUs; a hook that forbids nodes only on request.
fn for_managers(
    mut driver: DriverInfo,
    options: &Options,
    warnings: &mut Vec<String>,
) -> Result<Draft> {
    driver.graphics.clear();
    driver
        .files
        .retain(|file| file.path.file_name() != "nvidia-xconfig");
    let mut intents = Item::Whole(&driver).plan(&driver::request());
    intents.retain(|intent| !matches!(intent.what, What::DriverProc(_) | What::EglProfile(_)));
    warnings.extend(Exposure::of(&mut intents, options)?);
    let mut draft = render::draft(&intents, options);
    let unmodified = hook_names::DISABLE_NODE_MODIFICATION;
    if options.hooks.enabled.contains(unmodified) {
        draft.add_hook(unmodified, []);
    }
    Ok(draft)
}

fn feature(options: &Options, feature: Feature) -> Result<Content> {
    let (edits, warnings) = gated::edits(feature, &nodes(options), &options.driver_root);
    Ok(Content {
        devices: vec![DraftDevice::new("all", edits)],
        warnings,
        ..Content::default()
    })
}

#[cfg(test)]
mod tests {
    use libnvc::HostPath;
    use libnvc::host::{DriverFile, FileClass};

    use super::*;
    use crate::tests::options;

    #[test]
    fn managers_get_hooks_on_request_and_no_tool_for_displays() {
        let program = |name: &str| {
            let path = HostPath::new("/usr/bin").join(name);
            DriverFile::new(path, FileClass::Program)
        };
        let driver = DriverInfo {
            files: vec![program("nvidia-smi"), program("nvidia-xconfig")],
            ..DriverInfo::default()
        };
        let mut options = options(false);
        let is_hook = |draft: &Draft| {
            let mut hooks = draft.hooks.iter();
            hooks.any(|hook| hook.name == hook_names::DISABLE_NODE_MODIFICATION)
        };
        let made = |options: &Options| {
            let made = for_managers(driver.clone(), options, &mut Vec::new());
            made.unwrap_or_else(|error| panic!("{error}"))
        };
        let draft = made(&options);
        let mounts = draft.edits.mounts.iter();
        let mounts: Vec<&str> = mounts.map(|mount| mount.container_path.as_str()).collect();
        assert_eq!(mounts, ["/usr/bin/nvidia-smi"]);
        assert!(!is_hook(&draft));
        let name = hook_names::DISABLE_NODE_MODIFICATION.to_owned();
        options.hooks.enabled.insert(name);
        assert!(is_hook(&made(&options)));
    }
}
