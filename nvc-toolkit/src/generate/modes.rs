//! Finds what each mode is about.

use std::path::Path;

use libnvc::host::{DriverConfig, DriverSession};
use libnvc::{Error, ErrorKind, HostPath, Result};

use super::driver::{self, For, add_library_path, mount, nodes};
use super::tree::Tree;
use super::{Found, Mode, Naming, Options, devices, ids};
use crate::cdi::{Device, DeviceNode, Edits};
use crate::csv;
use crate::gated;
use crate::image::features::Feature;
use crate::mode::has_tegra_files;

/// Where the lists of a Jetson are.
const CSV: &str = "/etc/nvidia-container-runtime/host-files-for-container.d";
const CSV_FILES: [&str; 3] = ["devices.csv", "drivers.csv", "l4t.csv"];
const IMEX: &str = "/dev/nvidia-caps-imex-channels";
const MOST_CHANNELS: u32 = 1 << 20;

/// Nodes that no management container needs.
const NOT_MANAGED: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

/// Libraries of a WSL driver store that have no usual ending.
const STORE: [&str; 1] = ["nvidia-smi"];

pub(super) fn find(options: &Options) -> Result<Found> {
    match options.mode {
        Mode::Auto => auto(options),
        Mode::Csv => csv(options),
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
    if Path::new("/dev/dxg").exists() {
        return wsl(options);
    }
    if has_tegra_files(&options.driver_root) {
        return csv(options);
    }
    nvml(options)
}

fn open(options: &Options) -> Result<DriverSession> {
    let root =
        std::fs::canonicalize(&options.driver_root).unwrap_or_else(|_| options.driver_root.clone());
    DriverSession::open(&DriverConfig {
        root,
        ..DriverConfig::default()
    })
}

fn nvml(options: &Options) -> Result<Found> {
    let mut session = open(options)?;
    session.ready()?;
    let info = session.devices()?;
    // A driver that does not say its version is known by the names of its files.
    let version = session.driver_version().ok();
    let mut warnings = Vec::new();
    let devices = devices::devices(options, &info, &mut warnings)?;
    let common = driver::edits(options, version.as_deref(), For::Users, &mut warnings)?;
    let mut parts = Vec::new();
    if options.flags.coherent_annotations {
        let names = ["coherent", "noncoherent"];
        parts.extend(
            names
                .into_iter()
                .zip(devices::by_coherence(options, &info, &devices)),
        );
        parts.retain(|(_, devices)| !devices.is_empty());
    }
    Ok(Found {
        devices,
        common,
        parts,
        warnings,
    })
}

fn management(options: &Options) -> Result<Found> {
    let nodes = nodes(options);
    let mut edits = Edits::default();
    let is_managed = |name: &str| {
        name.starts_with("nvidia") && !NOT_MANAGED.iter().any(|out| name.starts_with(out))
    };
    let mut paths = nodes.matching("/dev", is_managed);
    paths.extend(nodes.matching("/dev/nvidia-caps", |name| name.starts_with("nvidia-cap")));
    paths.extend(nodes.matching(IMEX, |name| name.starts_with("channel")));
    paths.retain(|path| nodes.add(path, &mut edits).is_ok());
    if paths.is_empty() {
        let error = Error::new(ErrorKind::NotFound, "there is no device node of NVIDIA's");
        return Err(error
            .hint("nvidia-ctk system create-device-nodes --control-devices makes the driver's"));
    }
    let mut warnings = Vec::new();
    let version = open(options).and_then(|mut session| {
        session.ready()?;
        session.driver_version()
    });
    let common = driver::edits(
        options,
        version.ok().as_deref(),
        For::Managers,
        &mut warnings,
    )?;
    Ok(Found {
        devices: vec![all(edits)],
        common,
        warnings,
        ..Found::default()
    })
}

fn all(edits: Edits) -> Device {
    Device {
        name: "all".into(),
        container_edits: edits,
        ..Device::default()
    }
}

fn feature(options: &Options, feature: Feature) -> Result<Found> {
    let edits = gated::edits(feature, &nodes(options), &options.driver_root);
    Ok(Found {
        devices: vec![all(edits)],
        ..Found::default()
    })
}

fn imex(options: &Options) -> Result<Found> {
    let nodes = nodes(options);
    let is_all = options.ids.is_empty() || options.ids.iter().any(|id| id == "all");
    let names: Vec<String> = if is_all {
        let paths = nodes.matching(IMEX, |name| {
            name.strip_prefix("channel")
                .is_some_and(|rest| rest.parse::<u32>().is_ok())
        });
        paths
            .iter()
            .filter_map(|path| {
                path.strip_prefix(&format!("{IMEX}/channel"))
                    .map(String::from)
            })
            .collect()
    } else {
        options.ids.clone()
    };
    let mut devices = Vec::new();
    for name in names.iter().filter(|name| *name != "none") {
        let number = name.strip_prefix("channel").unwrap_or(name);
        let is_channel = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_channel
            || number
                .parse::<u32>()
                .map_or(true, |number| number >= MOST_CHANNELS)
        {
            let text = format!("{name:?} is no IMEX channel");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let path = format!("{IMEX}/channel{number}");
        let host_path = options.dev_root.join(path.trim_start_matches('/'));
        if !host_path.exists() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} is missing", host_path.display()),
            ));
        }
        let host_path = host_path.display().to_string();
        devices.push(Device {
            name: number.into(),
            container_edits: Edits {
                device_nodes: vec![DeviceNode {
                    path,
                    host_path,
                    ..DeviceNode::default()
                }],
                ..Edits::default()
            },
            ..Device::default()
        });
    }
    Ok(Found {
        devices,
        ..Found::default()
    })
}

fn wsl(options: &Options) -> Result<Found> {
    let session = open(options)?;
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            "no Windows driver: this is no WSL machine",
        )
    };
    let store = session.wsl().ok_or_else(missing)?.store.clone();
    let tree = Tree::open(&options.driver_root)?;
    let mut edits = Edits::default();
    nodes(options)
        .add("/dev/dxg", &mut edits)
        .map_err(|_| Error::new(ErrorKind::NotFound, "/dev/dxg is missing"))?;
    let mut common = Edits::default();
    let mut libraries = Vec::new();
    libraries.extend(tree.real_file(Path::new("/usr/lib/wsl/lib/libdxcore.so")));
    for name in tree.names(store.as_path(), "*") {
        let is_wanted = name.contains(".so")
            || name.ends_with(".bin")
            || name.ends_with(".dll")
            || STORE.contains(&name.as_str());
        if is_wanted {
            libraries.extend(tree.real_file(store.join(name).as_path()));
        }
    }
    for library in &libraries {
        mount(&tree, library, &mut common);
    }
    let program: HostPath = store.join("nvidia-smi");
    if libraries.contains(&program) {
        options
            .hooks
            .add_links(&[format!("{program}::/usr/bin/nvidia-smi")], &mut common);
    }
    add_library_path(options, &libraries, &mut common);
    Ok(Found {
        devices: vec![all(edits)],
        common,
        ..Found::default()
    })
}

fn csv(options: &Options) -> Result<Found> {
    if options.naming == [Naming::Uuid] {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the GPU of a Jetson has no UUID: name it by index",
        ));
    }
    let wanted = ids::parse(&options.ids)?;
    let is_other = |ids: &Vec<ids::Id>| ids.iter().any(|id| *id != ids::Id::Gpu(0));
    if matches!(&wanted, ids::Wanted::These(ids) if is_other(ids)) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the GPU of a Jetson is 0, or all",
        ));
    }
    let files = match options.csv_files.as_slice() {
        [] => CSV_FILES
            .iter()
            .map(|name| Path::new(CSV).join(name))
            .filter(|path| path.exists())
            .collect(),
        given => given.to_vec(),
    };
    let mut entries = Vec::new();
    for file in files {
        let text = std::fs::read(&file).map_err(|error| {
            let errno = error
                .raw_os_error()
                .map_or(nix::errno::Errno::EIO, nix::errno::Errno::from_raw);
            Error::file("open failed", &file, errno)
        })?;
        entries.extend(csv::list::parse(&String::from_utf8_lossy(&text)));
    }
    entries.retain(|entry| {
        !(entry.kind == csv::Kind::Link && is_ignored(&options.csv_ignore, &entry.path))
    });
    let tree = csv::Tree {
        root: options.driver_root.clone(),
        nodes: nodes(options),
        hook: options.hooks.program.path.clone().into(),
    };
    let (mut common, warnings) = tree.edits(&entries, wanted != ids::Wanted::None);
    common
        .env
        .retain(|variable| !variable.starts_with("NVIDIA_VISIBLE_DEVICES="));
    let links = usual_links(&common);
    if !links.is_empty() {
        let hook = super::hooks::repeated("--link", &links);
        common
            .hooks
            .insert(0, options.hooks.program.hook("create-symlinks", hook));
    }
    common.hooks.retain(|hook| {
        let name = hook
            .args
            .iter()
            .find(|arg| !matches!(arg.as_str(), "nvidia-ctk" | "hook" | "nvidia-cdi-hook"));
        let disabled = &options.hooks.disabled;
        let is_off = name.is_some_and(|name| disabled.contains(name) || disabled.contains("all"));
        !is_off || name.is_some_and(|name| options.hooks.enabled.contains(name))
    });
    let device_edits = Edits {
        device_nodes: std::mem::take(&mut common.device_nodes),
        additional_gids: std::mem::take(&mut common.additional_gids),
        ..Edits::default()
    };
    let name = |naming: &Naming| match naming {
        Naming::Index => Some("0"),
        Naming::TypeIndex => Some("gpu0"),
        Naming::Uuid => None,
    };
    let names = options.naming.iter().filter_map(name);
    let devices = names.map(|name| Device {
        name: name.into(),
        container_edits: device_edits.clone(),
        ..Device::default()
    });
    Ok(Found {
        devices: devices.collect(),
        common,
        warnings,
        ..Found::default()
    })
}

/// Links that programs look for beside mounted libraries.
fn usual_links(edits: &Edits) -> Vec<String> {
    let link = |mount: &crate::cdi::Mount| {
        let (directory, name) = mount.container_path.rsplit_once('/')?;
        let (target, link) = match name {
            name if name.starts_with("libcuda.so.") => ("libcuda.so.1", "libcuda.so"),
            name if name.starts_with("libGLX_nvidia.so.") => (name, "libGLX_indirect.so.0"),
            name if name.starts_with("libnvidia-opticalflow.so.") => {
                ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so")
            }
            _ => return None,
        };
        Some(format!("{target}::{directory}/{link}"))
    };
    edits.mounts.iter().filter_map(link).collect()
}

/// Whether a link fits a pattern: `**/X` means its name, anything else the whole path.
fn is_ignored(patterns: &[String], path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    patterns
        .iter()
        .any(|pattern| match pattern.strip_prefix("**/") {
            Some(pattern) => crate::programs::matches(pattern, name),
            None => crate::programs::matches(pattern, path),
        })
}
