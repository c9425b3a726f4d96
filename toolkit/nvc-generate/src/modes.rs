//! Collects the devices of each mode.

mod jetson;
pub(crate) mod nvml;

use std::path::Path;

use libnvc::host::{DriverInfo, everything, numbers};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{self, Intent, Link, Place, What};
use libnvc::request::Request;
use libnvc::{ContainerPath, Error, ErrorKind, Result};
use nvc_cdi::{CHARACTER, Device, DeviceNode, Edits};
use nvc_policy::image::features::Feature;
use nvc_policy::platform;

use crate::content::Content;
use crate::driver::{self, nodes};
use crate::nodes::Nodes;
use crate::{Files, Mode, Options, csv, gated, render};

use nvml::Answered;

const IMEX: &str = "/dev/nvidia-caps-imex-channels";
const MAX_CHANNELS: u32 = 1 << 20;

/// Nodes excluded from management containers.
const NOT_MANAGED: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

/// What a machine gives a request.
pub(super) enum Found {
    Content(Box<Content>),
    /// In mode auto: the GPUs are those of a Jetson's lists, whose driver this is.
    Jetson(csv::Driver),
}

/// Finds the devices of a request; those of a Jetson by the lists of its operating system.
pub(super) fn find(options: &Options, request: &Request) -> Result<Content> {
    match find_unless_jetson(options, request.clone())? {
        Found::Content(content) => Ok(*content),
        Found::Jetson(driver) => jetson::with_driver(options, request, &driver),
    }
}

/// Does so, but leaves a Jetson to the caller.
pub(super) fn find_unless_jetson(options: &Options, request: Request) -> Result<Found> {
    if options.mode == Mode::Auto && options.files != Files::AtStart {
        return auto(options, request);
    }
    of_mode(options, request).map(|content| Found::Content(Box::new(content)))
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
        Mode::Imex => imex(options, &request),
        Mode::Management => management(options),
        Mode::Mofed => feature(options, Feature::Mofed),
        Mode::Nvml => nvml::find(options, request),
        Mode::Nvswitch => feature(options, Feature::Nvswitch),
        Mode::Wsl => wsl(options, request),
    }
}

fn auto(options: &Options, request: Request) -> Result<Found> {
    let found = |content| Ok(Found::Content(Box::new(content)));
    if Path::new("/dev/dxg").exists() {
        return found(wsl(options, request)?);
    }
    let root = &options.driver_root;
    if options.library_search.is_empty() && platform::is_jetson_without_nvml(root) {
        let driver = csv::Driver::unasked(root, &options.query);
        return Ok(Found::Jetson(driver));
    }
    match nvml::plan_unless_jetson(options, request, platform::is_tegra(root))? {
        Answered::Plan(plan) => found(nvml::content(options, *plan)),
        Answered::Jetson(driver) => Ok(Found::Jetson(driver)),
    }
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
    paths.extend(nodes.matching(IMEX, is_channel, &mut warnings));
    paths.retain(|path| nodes.add(path, &mut edits).is_ok());
    if paths.is_empty() {
        let error = Error::new(ErrorKind::NotFound, "there is no device node of NVIDIA's");
        return Err(error
            .hint("nvidia-ctk system create-device-nodes --control-devices makes the driver's"));
    }
    let version = driver::session(options).and_then(|mut session| {
        session.ready()?;
        session.driver_version()
    });
    let found = driver::files(options, version.ok().as_deref())?;
    Ok(Content {
        devices: vec![all(edits)],
        common: for_managers(found, options),
        warnings,
        ..Content::default()
    })
}

/// Returns the driver's edits for management containers: without graphics, but with permission to create nodes and see
/// all GPUs.
fn for_managers(mut driver: DriverInfo, options: &Options) -> Edits {
    driver.graphics.clear();
    driver.graphics_links.clear();
    let mut intents = plan::of_driver(&driver, &driver::request());
    intents.retain(|intent| !matches!(intent.what, What::DriverProc(_) | What::EglProfile(_)));
    render::edits(&intents, options)
}

fn all(edits: Edits) -> Device {
    Device {
        name: "all".into(),
        container_edits: edits,
        ..Device::default()
    }
}

fn feature(options: &Options, feature: Feature) -> Result<Content> {
    let (edits, warnings) = gated::edits(feature, &nodes(options), &options.driver_root);
    Ok(Content {
        devices: vec![all(edits)],
        warnings,
        ..Content::default()
    })
}

fn imex(options: &Options, request: &Request) -> Result<Content> {
    let ids = request.devices.ids.split(',').filter(|id| !id.is_empty());
    let is_all = ids.clone().any(|id| id == "all");
    let (nodes, mut warnings) = (nodes(options), Vec::new());
    let names = if is_all {
        channels_of(&nodes, &mut warnings)
    } else {
        ids.map(str::to_owned).collect()
    };
    let devices = names.iter().map(|name| channel(&nodes, name));
    Ok(Content {
        devices: devices.collect::<Result<_>>()?,
        warnings,
        ..Content::default()
    })
}

/// Returns the numbers of this machine's channels, and why nodes are left out.
fn channels_of(nodes: &Nodes, refused: &mut Vec<String>) -> Vec<String> {
    let paths = nodes.matching(IMEX, |name| name.starts_with("channel"), refused);
    let prefix = format!("{IMEX}/channel");
    let numbers = paths.iter().filter_map(|path| path.strip_prefix(&prefix));
    numbers.map(String::from).collect()
}

/// Returns the device of one channel, named `channelN` or `N`.
fn channel(nodes: &Nodes, name: &str) -> Result<Device> {
    let number = name.strip_prefix("channel").unwrap_or(name);
    if numbers::canonical(number).is_none_or(|number| number >= MAX_CHANNELS) {
        let text = format!("\"{name}\" is not an IMEX channel");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let path = format!("{IMEX}/channel{number}");
    nodes.look_up(&path)?;
    let host_path = nodes.root.join(path.trim_start_matches('/'));
    let node = DeviceNode {
        path,
        host_path: host_path.display().to_string(),
        kind: CHARACTER.into(),
        ..DeviceNode::default()
    };
    let container_edits = Edits {
        device_nodes: vec![node],
        ..Edits::default()
    };
    Ok(Device {
        name: number.into(),
        container_edits,
        ..Device::default()
    })
}

fn wsl(options: &Options, mut request: Request) -> Result<Content> {
    let session = driver::session(options)?;
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            "no Windows driver: this is not a WSL2 machine",
        )
    };
    let wsl = session.wsl().ok_or_else(missing)?;
    let driver = everything::of_store(session.root(), wsl);
    let mut edits = Edits::default();
    nodes(options).add("/dev/dxg", &mut edits)?;
    // The driver store has no version to compare with.
    request.policy.cuda_compat = CudaCompatMode::Disabled;
    let mut intents = plan::of_driver(&driver, &request);
    let program = wsl.store.join("nvidia-smi");
    if driver.files.iter().any(|file| file.path == program) {
        intents.push(Intent::best_effort(What::Link(Link {
            at: Place::At(ContainerPath::new("/usr/bin/nvidia-smi")),
            target: program.as_path().to_owned(),
            replaces: false,
        })));
    }
    Ok(Content {
        devices: vec![all(edits)],
        common: render::edits(&intents, options),
        ..Content::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::host::CharDrivers;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// A second name for a channel would be a second device in the specification.
    #[test]
    #[ignore = "needs root"]
    fn a_channel_has_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join(IMEX.trim_start_matches('/'));
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["channel7", "channel+7", "channel007", "channelX"] {
            let rw = Mode::from_bits_truncate(0o666);
            mknod(&directory.join(name), SFlag::S_IFCHR, rw, makedev(235, 7)).unwrap();
        }
        let drivers = "Character devices:\n235 nvidia-caps-imex-channels\n";
        let nodes = Nodes {
            root: dir.path().into(),
            groups: false,
            drivers: CharDrivers::of(drivers, ""),
        };
        let mut refused = Vec::new();
        assert_eq!(channels_of(&nodes, &mut refused), ["7"]);
        assert_eq!(refused.len(), 3, "{refused:?}");
        let names = [
            "7",
            "channel7",
            "07",
            "+7",
            "channel007",
            "channel+7",
            "2048",
            "",
        ];
        let is_one = |name: &&str| channel(&nodes, name).is_ok();
        let taken: Vec<&str> = names.into_iter().filter(is_one).collect();
        assert_eq!(taken, ["7", "channel7"]);
    }
}
