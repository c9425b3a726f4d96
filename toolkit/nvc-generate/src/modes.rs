//! Collects the devices of each mode.

mod jetson;

use std::path::Path;

use libnvc::host::{CharDrivers, DeviceInfo, DriverInfo, everything, nodes as host_nodes, numbers};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{self, Intent, Link, Place, What};
use libnvc::render::cdi as rendered;
use libnvc::survey::Host;
use libnvc::{ContainerPath, Error, ErrorKind, Result};
use nvc_cdi::{CHARACTER, Device, DeviceNode, Edits, Hook};
use nvc_policy::image::features::Feature;
use nvc_policy::platform::has_tegra_files;
use nvc_policy::session;

use super::driver::{self, nodes, written};
use super::{Driver, Files, Found, Mode, Options, devices};
use crate::gated;
use crate::nodes::Nodes;

const IMEX: &str = "/dev/nvidia-caps-imex-channels";
const MOST_CHANNELS: u32 = 1 << 20;

/// Nodes excluded from management containers.
const NOT_MANAGED: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

pub(super) fn find(options: &Options) -> Result<Found> {
    let live = options.files == Files::AtStart;
    if live && !matches!(options.mode, Mode::Auto | Mode::Nvml) {
        let text =
            "a live specification is one of mode nvml: others have no files to find at start";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    match options.mode {
        Mode::Auto => auto(options),
        Mode::Csv => jetson::find(options),
        Mode::Gdrcopy => feature(options, Feature::Gdrcopy),
        Mode::Gds => feature(options, Feature::Gds),
        Mode::Imex => imex(options),
        Mode::Management => management(options),
        Mode::Mofed => feature(options, Feature::Mofed),
        Mode::Nvml => nvml(options),
        Mode::Nvswitch => feature(options, Feature::Nvswitch),
        Mode::Wsl => wsl(options),
    }
}

fn auto(options: &Options) -> Result<Found> {
    if options.files == Files::AtStart {
        return nvml(options);
    }
    if Path::new("/dev/dxg").exists() {
        return wsl(options);
    }
    if has_tegra_files(&options.driver_root) {
        return jetson::find(options);
    }
    nvml(options)
}

fn nvml(options: &Options) -> Result<Found> {
    let mut session = session::open(driver::root(options), &options.query)?;
    // While NVML is busy: its version is almost always that of the libraries.
    let files = (options.files == Files::Listed).then(|| driver::files(options, None));
    session.ready()?;
    let info = session.devices()?;
    let version = session.driver_version().ok();
    let dev_root = driver::dev_root(options)?;
    let drivers = CharDrivers::discover();
    let chosen = devices::choose(options, &info, &dev_root, &drivers)?;
    let is_none = chosen.is_none();
    let chosen = chosen.unwrap_or_default();
    let mut missing = chosen.missing;
    let mut driver = match (files, version) {
        (None, _) => DriverInfo::default(),
        (Some(Ok(files)), Some(version)) if files.versions.driver == version => files,
        (Some(_), Some(version)) => driver::files(options, Some(&version))?,
        // The driver does not say its version.
        (Some(files), None) => files?,
    };
    driver.devices = host_nodes::of_specification(&dev_root, &drivers, &mut missing);
    let host = Host {
        root: driver::root(options),
        driver,
        devices: DeviceInfo::default(),
        chosen: chosen.gpus,
        missing: missing.clone(),
        grants: Ok(chosen.grants),
    };
    let mut request = driver::request();
    if options.files != Files::Listed {
        request.policy.cuda_compat = CudaCompatMode::Disabled;
    }
    let content = plan::plan(&request, &host)?;
    let content = rendered::content(&content, &driver::rendering(options));
    let named = |device| devices::named(options, device);
    let devices: Vec<Device> = match is_none {
        true => vec![devices::empty_device()],
        false => content.devices.into_iter().flat_map(named).collect(),
    };
    let parts = match options.flags.coherent_annotations {
        true => by_coherence(options, &info, &devices),
        false => Vec::new(),
    };
    // An image's requirements are checked against these facts, if the driver reports its versions.
    let driver = session.versions().ok().map(|versions| Driver {
        versions,
        gpus: info.gpus,
    });
    let mut common = written(content.common, options);
    if options.files == Files::AtStart {
        common.hooks.insert(0, live_hook(options));
    }
    Ok(Found {
        devices,
        common,
        parts,
        warnings: missing,
        driver,
    })
}

/// Returns the devices of each kind of memory that this machine has.
fn by_coherence(
    options: &Options,
    info: &DeviceInfo,
    devices: &[Device],
) -> Vec<(&'static str, Vec<Device>)> {
    let parts = devices::by_coherence(options, info, devices);
    let parts = ["coherent", "noncoherent"].into_iter().zip(parts);
    parts.filter(|(_, devices)| !devices.is_empty()).collect()
}

/// Returns the part of the merged hook that finds the driver's files.
fn live_hook(options: &Options) -> Hook {
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
    for hook in ["create-symlinks", "enable-cuda-compat", "update-ldcache"] {
        if options.hooks.is_off(hook) {
            add("--without", hook);
        }
    }
    let flags = [
        ("--no-ipc", options.flags.no_ipc),
        (
            "--explicit-driver-libraries",
            options.flags.explicit_driver_libraries,
        ),
    ];
    let given = flags.iter().filter(|(_, given)| *given);
    words.extend(given.map(|(option, _)| option.to_string()));
    options.hooks.program.hook("discover", words)
}

fn management(options: &Options) -> Result<Found> {
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
    let version = session::open(driver::root(options), &options.query).and_then(|mut session| {
        session.ready()?;
        session.driver_version()
    });
    let found = driver::files(options, version.ok().as_deref())?;
    Ok(Found {
        devices: vec![all(edits)],
        common: for_managers(found, options),
        warnings,
        ..Found::default()
    })
}

/// Returns the driver's edits for management containers: without graphics, but with permission to create nodes and see
/// all GPUs.
fn for_managers(mut driver: DriverInfo, options: &Options) -> Edits {
    driver.graphics.clear();
    driver.graphics_links.clear();
    let mut intents = plan::of_driver(&driver, &driver::request());
    intents.retain(|intent| !matches!(intent.what, What::DriverProc(_) | What::EglProfile(_)));
    driver::edits(&intents, options)
}

fn all(edits: Edits) -> Device {
    Device {
        name: "all".into(),
        container_edits: edits,
        ..Device::default()
    }
}

fn feature(options: &Options, feature: Feature) -> Result<Found> {
    let (edits, warnings) = gated::edits(feature, &nodes(options), &options.driver_root);
    Ok(Found {
        devices: vec![all(edits)],
        warnings,
        ..Found::default()
    })
}

fn imex(options: &Options) -> Result<Found> {
    let is_all = options.ids.is_empty() || options.ids.iter().any(|id| id == "all");
    let (nodes, mut warnings) = (nodes(options), Vec::new());
    let names = match is_all {
        true => channels_of(&nodes, &mut warnings),
        false => options.ids.clone(),
    };
    let names = names.iter().filter(|name| *name != "none");
    let devices = names.map(|name| channel(&nodes, name));
    Ok(Found {
        devices: devices.collect::<Result<_>>()?,
        warnings,
        ..Found::default()
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
    let refused = |text| Error::new(ErrorKind::InvalidArgument, text);
    let number = name.strip_prefix("channel").unwrap_or(name);
    if numbers::canonical(number).is_none_or(|number| number >= MOST_CHANNELS) {
        return Err(refused(format!("\"{name}\" is not an IMEX channel")));
    }
    let path = format!("{IMEX}/channel{number}");
    nodes.look_up(&path).map_err(refused)?;
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

fn wsl(options: &Options) -> Result<Found> {
    let session = session::open(driver::root(options), &options.query)?;
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            "no Windows driver: this is not a WSL2 machine",
        )
    };
    let wsl = session.wsl().ok_or_else(missing)?;
    let driver = everything::of_store(session.root(), wsl);
    let mut edits = Edits::default();
    nodes(options)
        .add("/dev/dxg", &mut edits)
        .map_err(|why| Error::new(ErrorKind::NotFound, why))?;
    let mut request = driver::request();
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
    Ok(Found {
        devices: vec![all(edits)],
        common: driver::edits(&intents, options),
        ..Found::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// A second name for a channel would be a second device in the specification.
    #[test]
    fn a_channel_has_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join(IMEX.trim_start_matches('/'));
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["channel7", "channel+7", "channel007", "channelX"] {
            let rw = Mode::from_bits_truncate(0o666);
            // Without the privilege there is nothing to test.
            let Ok(()) = mknod(&directory.join(name), SFlag::S_IFCHR, rw, makedev(235, 7)) else {
                return;
            };
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
