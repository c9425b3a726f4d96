//! Checks whether the toolkit's settings and programs fit this machine and its engines.

use std::path::{Path, PathBuf};

use nvc_cdi::Registry;
use nvc_hostfile::programs;
use nvc_policy::config::{self, Config};
use nvc_policy::mode::{Mode, Setting};
use serde_json::Value;

use super::place::{Kind, Place};
use super::{Fault, read};

const HOOK: &str = "nvidia-container-runtime-hook";
const RUNTIME: &str = "nvidia-container-runtime";
const DAEMON: &str = "/etc/docker/daemon.json";

/// Directories whose hooks podman runs in every container.
const HOOK_DIRECTORIES: [&str; 2] = [
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
];

/// Checks settings that are valid and do not fit this machine.
pub(super) fn settings(config: &Config, place: &Place, registry: &Registry) -> Vec<Fault> {
    let mut faults = place.faults(config);
    faults.extend(mode(config, place, registry));
    faults.extend(no_cgroups(config));
    faults.extend(ldconfig(config));
    faults.extend(annotations(config));
    faults
}

/// Checks annotations that were configured to be requests, and count only where the environment does.
fn annotations(config: &Config) -> Option<Fault> {
    let prefixes = &config.runtime.cdi_annotation_prefixes;
    let usual = &Config::default().runtime.cdi_annotation_prefixes;
    (!prefixes.is_empty() && prefixes != usual && !config.accept_annotations).then(|| {
        let key = "nvidia-container-runtime.modes.cdi.annotation-prefixes";
        let origin = config.origin(key);
        ignored_annotations(&format!("{key} ({origin}) lists {}", prefixes.join(", ")))
    })
}

/// Advises to let annotations decide, if a device plugin needs that.
pub(super) fn ignored_annotations(what: &str) -> Fault {
    let what = format!(
        "{what}, and annotations count only where NVIDIA_VISIBLE_DEVICES does, and for no GPU that it does not name"
    );
    let repair = "nvidia-ctk config --set accept-annotations=true --in-place, if no engine here copies annotations of \
                  images into containers (podman up to version 4 does)";
    let shows = "pods of a device plugin that uses annotations get no GPU: Ignoring devices requested by annotation";
    Fault::new(what, shows, repair)
}

fn mode(config: &Config, place: &Place, registry: &Registry) -> Option<Fault> {
    let (key, origin) = (config::MODE, config.mode_origin());
    let fault = |what: &str, shows, repair: &str| {
        let word = &config.runtime.mode;
        Some(Fault::new(
            format!("{key} = \"{word}\" ({origin}): {what}"),
            shows,
            repair,
        ))
    };
    let automatic = format!("nvidia-ctk config --set {key}=auto --in-place");
    let fails = "containers with the runtime nvidia do not start";
    match Setting::of(config) {
        Setting::Unknown(_) => fault(
            "the modes are auto, legacy, cdi, jit-cdi and csv",
            fails,
            &automatic,
        ),
        Setting::Fixed(Mode::Csv) if place.kind != Kind::Tegra => {
            fault("this machine is not a Jetson", fails, &automatic)
        }
        Setting::Fixed(Mode::Cdi) => {
            let kind = &config.runtime.cdi_default_kind;
            let start = format!("{kind}=");
            let what = format!("no specification has devices of {kind}");
            let is_there = registry.device_names().any(|name| name.starts_with(&start));
            let repair = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml";
            (!is_there).then(|| fault(&what, "unresolvable CDI devices", repair))?
        }
        Setting::Auto | Setting::Fixed(_) => None,
    }
}

/// Checks `no-cgroups`: the setting is global, but meant for rootless engines.
fn no_cgroups(config: &Config) -> Option<Fault> {
    let has_daemon = Path::new(DAEMON).exists() || Path::new("/run/docker.sock").exists();
    (config.cli.no_cgroups && has_daemon).then(|| {
        Fault::new(
            "nvidia-container-cli.no-cgroups is true, which is for rootless engines; this machine has docker's daemon",
            "docker run --gpus: Failed to initialize NVML: Unknown Error",
            "nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
        )
    })
}

fn ldconfig(config: &Config) -> Option<Fault> {
    let value = config.cli.ldconfig.as_deref()?;
    let path = value
        .strip_prefix("program:")
        .unwrap_or(value)
        .strip_prefix('@')?;
    let plain = path.strip_suffix(".real").unwrap_or(path);
    let exists = |path: &str| Path::new(path).exists();
    (!exists(plain) && !exists(&format!("{plain}.real"))).then(|| {
        Fault::new(
            format!("nvidia-container-cli.ldconfig is {value}, and {plain} is missing"),
            "containers do not start: ldcache error: open failed",
            "nvidia-ctk config --set nvidia-container-cli.ldconfig=@/sbin/ldconfig --in-place",
        )
    })
}

/// Checks the programs that docker and podman start.
pub(super) fn programs(config: &Config, registry: &Registry) -> Vec<Fault> {
    let mut faults: Vec<Fault> = snap().into_iter().collect();
    faults.extend(not_installed(registry));
    faults.extend(no_low_level(config));
    for directory in HOOK_DIRECTORIES {
        faults.extend(missing_hooks(directory));
    }
    faults
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH");
    programs::find(name, &programs::directories(path.as_deref()))
}

fn snap() -> Option<Fault> {
    let is_snap = Path::new("/snap/bin/docker").is_symlink() || Path::new("/snap/docker").exists();
    (is_snap && find("dockerd").is_none()).then(|| {
        Fault::new(
            "docker is a snap: it sees neither the driver's libraries nor this toolkit nor /etc/docker/daemon.json",
            "load library failed: libnvidia-ml.so.1, or could not select device driver \"\" with capabilities: [[gpu]]",
            "snap remove docker, and install docker as a package (docker.io or docker-ce)",
        )
    })
}

fn not_installed(registry: &Registry) -> Option<Fault> {
    let has_docker = find("dockerd").is_some();
    let has_devices = registry
        .device_names()
        .any(|name| name.starts_with("nvidia.com/gpu="));
    let has_program = find(HOOK).is_some() || find(RUNTIME).is_some();
    (has_docker && !has_devices && !has_program).then(|| {
        Fault::new(
            format!("docker is installed, and neither {HOOK} nor {RUNTIME} is"),
            "docker run --gpus: could not select device driver \"\" with capabilities: [[gpu]]",
            "install nvidia-container-toolkit, and restart docker",
        )
    })
}

/// Checks that the runtime finds one of the low-level runtimes that it executes.
fn no_low_level(config: &Config) -> Option<Fault> {
    let names = &config.runtime.runtimes;
    let exists = |name: &String| {
        if name.contains('/') {
            programs::is_executable(Path::new(name))
        } else {
            find(name).is_some()
        }
    };
    (find(RUNTIME).is_some() && !names.iter().any(exists)).then(|| {
        Fault::new(
            format!("none of {RUNTIME}.runtimes exists: {}", names.join(", ")),
            "containers with the runtime nvidia do not start",
            "install runc or crun, or set its path: nvidia-ctk config --set nvidia-container-runtime.runtimes=PATH --in-place",
        )
    })
}

/// Returns NVIDIA's hooks whose program is gone: an older toolkit's package may have left them.
fn missing_hooks(directory: &str) -> Vec<Fault> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let fault = |file: PathBuf| {
        let text = read(file.to_str()?)?;
        let hook: Value = serde_json::from_str(&text).ok()?;
        let program = hook.get("hook")?.get("path")?.as_str()?;
        let is_gone = program.contains("nvidia") && !Path::new(program).exists();
        let file = file.display();
        is_gone.then(|| {
            Fault::new(
                format!("{file} runs {program}, which is missing"),
                "podman: no container starts, or none gets a GPU",
                format!("rm {file}, and use podman run --device nvidia.com/gpu=all"),
            )
        })
    };
    files.filter_map(fault).collect()
}
