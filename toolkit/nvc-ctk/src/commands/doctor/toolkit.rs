//! Checks whether the toolkit's settings and programs fit this machine and its engines.

use std::path::{Path, PathBuf};

use libnvc::options::Ldconfig;
use nvc_cdi::Registry;
use nvc_hostfile::programs;
use nvc_policy::config::keys::{
    ACCEPT_ANNOTATIONS, ACCEPT_VARIABLES, ANNOTATION_PREFIXES, CLI_PATH, HOOK_PATH, LDCACHE,
    LDCONFIG, NO_CGROUPS, USER,
};
use nvc_policy::config::{self, Config, ldconfig};
use nvc_policy::mode::Mode;

use super::engines::{RUNTIME, is_program};
use super::place::{Kind, Place};
use super::settings::set;
use super::{Finding, read};
use crate::ask::{ask, directories, find};
use crate::commands::repair::{Repair, command, step, word};

const HOOK: &str = "nvidia-container-runtime-hook";
const CLI: &str = "nvidia-container-cli";
const CDI_HOOK: &str = "nvidia-cdi-hook";
const DAEMON: &str = "/etc/docker/daemon.json";

/// Checks settings that are valid and do not fit this machine.
pub(super) fn settings(
    config: &Config,
    place: &Place,
    registry: &Registry,
    driver_works: bool,
) -> Vec<Finding> {
    let findings = [
        place.finding(config),
        mode(config, place, registry, driver_works),
        no_cgroups(config),
        user(config),
        ldcache(config, place),
        variables(config),
        ldconfig(config),
        annotations(config),
    ];
    findings.into_iter().flatten().collect()
}

/// Checks annotations that were configured to be requests, and count only where the environment does.
fn annotations(config: &Config) -> Option<Finding> {
    let prefixes = &config.runtime.cdi_annotation_prefixes;
    let usual = &Config::default().runtime.cdi_annotation_prefixes;
    (!prefixes.is_empty() && prefixes != usual && !config.accept_annotations).then(|| {
        let (origin, list) = (config.origin(ANNOTATION_PREFIXES), prefixes.join(", "));
        let what = format!("{ANNOTATION_PREFIXES} ({origin}) lists {list}");
        ignored_annotations(config, &what)
    })
}

/// Advises to let annotations decide, if a device plugin needs that.
pub(super) fn ignored_annotations(config: &Config, what: &str) -> Finding {
    let what = format!(
        "{what}, but {ACCEPT_ANNOTATIONS} is off: annotations add no GPU to those of NVIDIA_VISIBLE_DEVICES"
    );
    let note = "only if no engine here copies annotations of images into containers, as podman up to version 4 does: an \
                image could then choose its GPUs";
    let symptom = "pods of a device plugin that uses annotations get no GPU: Ignoring devices requested by annotation";
    Finding::advice(what, symptom, set(config, ACCEPT_ANNOTATIONS, true)).note(note)
}

fn mode(
    config: &Config,
    place: &Place,
    registry: &Registry,
    driver_works: bool,
) -> Option<Finding> {
    let (key, origin) = (config::MODE, config.mode_origin());
    let finding = |what: &str, symptom, repair: Repair| {
        let word = &config.runtime.mode;
        Some(Finding::wrong(
            format!("{key} = \"{word}\" ({origin}): {what}"),
            symptom,
            repair,
        ))
    };
    let automatic = set(config, key, "auto");
    let fails = "containers with the runtime nvidia do not start";
    match Mode::configured(config) {
        Err(_) => finding(
            "the modes are auto, legacy, cdi, jit-cdi and csv",
            fails,
            automatic,
        ),
        Ok(Some(Mode::Csv)) if place.kind != Kind::Tegra => {
            finding("this machine is not a Jetson", fails, automatic)
        }
        Ok(Some(Mode::Cdi)) => {
            let kind = &config.runtime.cdi_default_kind;
            let start = format!("{kind}=");
            let what = format!("no specification has devices of {kind}");
            let is_there = registry.device_names().any(|name| name.starts_with(&start));
            let repair = generate(kind, driver_works);
            (!is_there).then(|| finding(&what, "unresolvable CDI devices", repair))?
        }
        Ok(_) => None,
    }
}

/// Returns the command that writes a specification of this machine's GPUs, as devices of a kind.
pub(super) fn generate(kind: &str, driver_works: bool) -> Repair {
    let line = "nvidia-ctk cdi generate";
    let line = match kind.split_once('/') {
        Some((vendor, class)) if kind != "nvidia.com/gpu" => format!(
            "{line} {} {} --output={}",
            word(&format!("--vendor={vendor}")),
            word(&format!("--class={class}")),
            word(&format!("/var/run/cdi/{vendor}-{class}.yaml"))
        ),
        _ => format!("{line} --output=/var/run/cdi/nvidia.yaml"),
    };
    if driver_works {
        command(line)
    } else {
        step("repair the driver").and(&line)
    }
}

/// Checks `no-cgroups`: the setting is global, but meant for rootless engines.
fn no_cgroups(config: &Config) -> Option<Finding> {
    let has_daemon = Path::new(DAEMON).exists() || Path::new("/run/docker.sock").exists();
    (config.cli.no_cgroups && has_daemon).then(|| {
        let what = "is true, which is for rootless engines; this machine has docker's daemon";
        let symptom = "docker run --gpus: Failed to initialize NVML: Unknown Error";
        let repair = set(config, NO_CGROUPS, false);
        Finding::wrong(format!("{NO_CGROUPS} {what}"), symptom, repair)
    })
}

/// Checks that the user and the group exist, with whose ids NVML is asked.
fn user(config: &Config) -> Option<Finding> {
    let value = config.cli.user.as_deref()?;
    let (user, group) = value.split_once(':').unwrap_or((value, ""));
    let exists = |name: &str, file: &str| {
        let start = format!("{name}:");
        let text = read(&format!("/etc/{file}")).unwrap_or_default();
        // Directory services have users of their own.
        text.lines().any(|line| line.starts_with(&start)) || ask("getent", &[file, name]).is_ok()
    };
    let is_number = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
    let mut names = [("user", user, "passwd"), ("group", group, "group")].into_iter();
    let (kind, name, _) = names.find(|(_, name, file)| !is_number(name) && !exists(name, file))?;
    let what = format!("{USER} is \"{value}\", and there is no {kind} {name}");
    let symptom = "docker run --gpus: parse user/group failed: no such file or directory";
    let repair = set(config, USER, "root:root");
    Some(Finding::wrong(what, symptom, repair))
}

/// Checks that the loader's cache exists that the file names.
fn ldcache(config: &Config, place: &Place) -> Option<Finding> {
    let value = config.cli.ldcache.as_str();
    (!value.is_empty() && !place.path(value).exists()).then(|| {
        let what = format!("{LDCACHE} is {value}, which is missing");
        let symptom = "docker run --gpus: open failed: no such file or directory";
        Finding::wrong(what, symptom, set(config, LDCACHE, "/etc/ld.so.cache"))
    })
}

/// Advises on a setting of Kubernetes' guides, with which docker's requests are ignored.
fn variables(config: &Config) -> Option<Finding> {
    (!config.accept_envvar_unprivileged).then(|| {
        let (key, origin) = (ACCEPT_VARIABLES, config.origin(ACCEPT_VARIABLES));
        let what = format!("{key} ({origin}) is false: unprivileged containers request no GPU by variables");
        let symptom = "docker run --gpus and --runtime=nvidia: the container starts without a GPU; the journal says \
                       Ignoring devices requested";
        Finding::advice(what, symptom, set(config, key, true))
            .note("leave it if only a device plugin, by volume mounts, gives GPUs on this machine")
    })
}

fn ldconfig(config: &Config) -> Option<Finding> {
    let value = config.cli.ldconfig.as_deref()?;
    let chosen = ldconfig::for_library(config).on(Path::exists);
    let Ldconfig::Host(path) = chosen else {
        return None;
    };
    (!Ldconfig::real(&path, Path::exists).exists()).then(|| {
        Finding::wrong(
            format!("{LDCONFIG} is {value}, and {} is missing", path.display()),
            "containers do not start: ldcache error: open failed",
            set(config, LDCONFIG, "auto"),
        )
    })
}

/// Checks the programs that docker and podman start.
pub(super) fn programs(config: &Config, registry: &Registry) -> Vec<Finding> {
    let first = [snap(), not_installed(registry), no_low_level(config)];
    let mut findings: Vec<Finding> = first.into_iter().flatten().collect();
    findings.extend(missing(config));
    findings.extend(copies());
    findings
}

fn snap() -> Option<Finding> {
    let is_snap = Path::new("/snap/bin/docker").is_symlink() || Path::new("/snap/docker").exists();
    (is_snap && find("dockerd").is_none()).then(|| {
        Finding::wrong(
            "docker is a snap: it sees neither the driver's libraries nor this toolkit nor /etc/docker/daemon.json",
            "load library failed: libnvidia-ml.so.1, or could not select device driver \"\" with capabilities: [[gpu]]",
            step("snap remove docker, and install docker as a package (docker.io or docker-ce)"),
        )
    })
}

fn not_installed(registry: &Registry) -> Option<Finding> {
    let has_docker = find("dockerd").is_some();
    let has_devices = registry
        .device_names()
        .any(|name| name.starts_with("nvidia.com/gpu="));
    let has_program = find(HOOK).is_some() || find(RUNTIME).is_some();
    (has_docker && !has_devices && !has_program).then(|| {
        Finding::wrong(
            format!("docker is installed, and neither {HOOK} nor {RUNTIME} is"),
            "docker run --gpus: could not select device driver \"\" with capabilities: [[gpu]]",
            step("install nvidia-container-toolkit").and("systemctl restart docker"),
        )
    })
}

/// Checks that the runtime finds one of the low-level runtimes that it executes.
fn no_low_level(config: &Config) -> Option<Finding> {
    let names = &config.runtime.runtimes;
    (find(RUNTIME).is_some() && !names.iter().any(|name| is_program(name))).then(|| {
        Finding::wrong(
            format!("none of {RUNTIME}.runtimes exists: {}", names.join(", ")),
            "containers with the runtime nvidia do not start",
            step("install runc or crun, or set its path")
                .and(set(config, &format!("{RUNTIME}.runtimes"), "PATH").text()),
        )
    })
}

/// Checks that the programs that our programs execute are there.
fn missing(config: &Config) -> Vec<Finding> {
    let exists = |name: &str| find(name).is_some();
    let mut findings = Vec::new();
    // The hook searches only for what is not set.
    let (cli, is_there) = match config.cli.path.as_str() {
        "" => (CLI, exists(CLI)),
        path => (path, programs::is_executable(Path::new(path))),
    };
    if exists(HOOK) && !is_there {
        findings.push(Finding::wrong(
            format!("{cli} is missing, which {HOOK} executes"),
            "docker run --gpus: exec: nvidia-container-cli: executable file not found",
            if exists(CLI) {
                set(config, CLI_PATH, "")
            } else {
                step(format!("install libnvidia-container-tools ({CLI})"))
            },
        ));
    }
    if exists(HOOK) && !exists(RUNTIME) {
        findings.push(Finding::wrong(
            format!("{RUNTIME} is missing"),
            "docker and containerd: containers with the runtime nvidia do not start",
            step("install nvidia-container-toolkit-base"),
        ));
    }
    let is_legacy = matches!(Mode::configured(config), Ok(Some(Mode::Legacy)));
    let hook = match config.hook.path.as_str() {
        path if path.starts_with('/') => path,
        _ => HOOK,
    };
    if is_legacy && exists(RUNTIME) && !is_program(hook) {
        findings.push(Finding::wrong(
            format!("{hook} is missing, which the runtime's mode legacy needs"),
            "containers with the runtime nvidia do not start",
            if hook != HOOK && exists(HOOK) {
                set(config, HOOK_PATH, HOOK)
            } else {
                step("install nvidia-container-toolkit")
            },
        ));
    }
    findings.extend(cdi_hook());
    findings
}

/// Advises to keep one installation: of two programs of a name, the first in PATH is used.
fn copies() -> Option<Finding> {
    let directories = directories();
    [HOOK, RUNTIME, CLI, CDI_HOOK, "nvidia-ctk"].iter().find_map(|name| {
        let paths = directories.iter().map(|directory| directory.join(name));
        let mut found: Vec<PathBuf> = Vec::new();
        for path in paths.filter(|path| programs::is_executable(path)) {
            let path = path.canonicalize().unwrap_or(path);
            if !found.contains(&path) {
                found.push(path);
            }
        }
        let [first, second, ..] = &found[..] else {
            return None;
        };
        let (first, second) = (first.display(), second.display());
        let what = format!("{name} is installed twice: {first} is used, and not {second}");
        let symptom = "which program works, and how new it is, depends on PATH";
        let repair = format!(
            "remove one: with make uninstall, with the package manager, or what is left over with rm {first}"
        );
        Some(Finding::advice(what, symptom, step(repair)))
    })
}

/// Checks the program that specifications name.
fn cdi_hook() -> Option<Finding> {
    let symptom = "containers with CDI devices do not start";
    if find(CDI_HOOK).is_some() {
        return None;
    }
    let paths = directories().into_iter().map(|one| one.join(CDI_HOOK));
    let (what, repair) = match paths.into_iter().find(|path| path.exists()) {
        None => {
            let what = "nvidia-cdi-hook is not in PATH".to_owned();
            (what, step("install nvidia-container-toolkit-base"))
        }
        Some(found) => {
            let found = found.display();
            let repair = command(format!("chmod 755 {}", word(&found)));
            (format!("{found} is not executable"), repair)
        }
    };
    Some(Finding::wrong(what, symptom, repair))
}
