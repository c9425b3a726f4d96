//! Checks container engines and their configuration.

use std::path::Path;
use std::process::Command;

use nvc_policy::config::Config;
use serde_json::Value;

use super::{Fault, version_in};
use crate::engine::change::read;
use crate::engine::{containerd as containerd_config, docker as docker_config};

/// Patch levels of runc that lose devices without a link in /dev/char when systemd reloads.
const FORGETFUL: [u32; 4] = [3, 4, 5, 6];

const RUNTIME: &str = "nvidia-container-runtime";

const REGISTER: &str = "nvidia-ctk runtime configure --runtime=docker, and restart docker";

/// Reads an engine's configuration; None if it does not exist.
fn configuration(path: &Path, shows: &'static str) -> Result<Option<String>, Fault> {
    read(path).map_err(|error| {
        let repair = format!("correct {}", path.display());
        Fault::new(error.message(), shows, repair)
    })
}

pub(super) fn docker() -> Vec<Fault> {
    let path = Path::new(docker_config::CONFIG);
    let shows = "dockerd does not start, or containers with --runtime=nvidia fail";
    let text = match configuration(path, shows) {
        Ok(None) => return Vec::new(),
        Ok(Some(text)) => text,
        Err(fault) => return vec![fault],
    };
    let value: Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        Err(error) => {
            let what = format!("{}: {error}", path.display());
            return vec![Fault::new(
                what,
                shows,
                format!("correct {}", path.display()),
            )];
        }
    };
    runtimes(path, &value, shows)
        .chain(default_runtime(path, &value))
        .collect()
}

/// Returns docker's NVIDIA runtimes whose program is missing.
fn runtimes<'a>(
    config: &'a Path,
    value: &'a Value,
    shows: &'static str,
) -> impl Iterator<Item = Fault> + 'a {
    let runtimes = value.get("runtimes").and_then(Value::as_object);
    runtimes
        .into_iter()
        .flatten()
        .filter_map(move |(name, entry)| {
            let program = entry.get("path").and_then(Value::as_str);
            let program = program.unwrap_or_default();
            let is_missing = name.starts_with("nvidia") && !is_program(program);
            is_missing.then(|| {
                let config = config.display();
                let what = format!("{config}: runtime {name} is {program}, which is missing");
                Fault::new(what, shows, REGISTER)
            })
        })
}

/// Checks that a default runtime of NVIDIA's is registered with docker.
fn default_runtime(config: &Path, value: &Value) -> Option<Fault> {
    let default = value.get("default-runtime").and_then(Value::as_str)?;
    let runtimes = value.get("runtimes");
    let is_known = runtimes.is_some_and(|runtimes| runtimes.get(default).is_some());
    (default.starts_with("nvidia") && !is_known).then(|| {
        let config = config.display();
        let what = format!("{config}: the default runtime {default} is not registered");
        Fault::new(what, "dockerd does not start", REGISTER)
    })
}

/// Returns true if a path, or a name in PATH, is a program.
fn is_program(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).is_file();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let more = [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ];
    !name.is_empty()
        && path
            .split(':')
            .chain(more)
            .any(|directory| Path::new(directory).join(name).is_file())
}

pub(super) fn containerd(config: &Config) -> Vec<Fault> {
    let path = Path::new(containerd_config::CONFIG);
    let shows = "pods with the runtime class nvidia do not start";
    let text = match configuration(path, shows) {
        Ok(None) => return Vec::new(),
        Ok(Some(text)) => text,
        Err(fault) => return vec![fault],
    };
    if let Err(error) = containerd_config::has(path, &text, "nvidia") {
        let repair = format!("correct {}, and restart containerd", path.display());
        return vec![Fault::new(
            error.message(),
            "containerd does not start",
            repair,
        )];
    }
    let mut faults = Vec::new();
    let repair = "nvidia-ctk runtime configure --runtime=containerd, and restart containerd";
    let drop_in = Path::new(containerd_config::DROP_IN);
    let is_imported = text.contains("/etc/containerd/conf.d/");
    if drop_in.exists() && !is_imported {
        let what = format!("{} does not import {}", path.display(), drop_in.display());
        faults.push(Fault::new(what, shows, repair));
    }
    let texts = [Some(text), super::read(containerd_config::DROP_IN)];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    if texts.iter().any(|text| text.contains(RUNTIME)) {
        faults.extend(cri_is_disabled(path, &texts[0], shows));
    }
    if !config.accept_annotations {
        let text = texts.iter().find(|text| disables_cdi(text));
        let path = path.display();
        faults.extend(text.map(|_| {
            super::toolkit::ignored_annotations(&format!(
                "{path}: containerd's CDI is switched off"
            ))
        }));
    }
    let missing = texts.iter().flat_map(|text| runtime_programs(text));
    let missing = missing.filter(|program| !is_program(program));
    faults.extend(missing.map(|program| {
        let what = format!("containerd's runtime is {program}, which is missing");
        Fault::new(what, shows, repair)
    }));
    faults
}

/// Returns true if containerd shall leave devices in annotations to the runtime.
fn disables_cdi(text: &str) -> bool {
    let value = |line: &str| {
        let value = line.trim().strip_prefix("enable_cdi")?.trim_start();
        let value = value
            .strip_prefix('=')?
            .trim_start()
            .strip_prefix("false")?;
        Some(value.trim_start().is_empty() || value.trim_start().starts_with('#'))
    };
    text.lines().any(|line| value(line) == Some(true))
}

/// Checks for a disabled CRI plugin, which pods need: Docker's package of containerd disables it.
fn cri_is_disabled(path: &Path, text: &str, shows: &'static str) -> Option<Fault> {
    let list = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let list: String = list.collect::<Vec<_>>().join("\n");
    let (_, list) = list.split_once("disabled_plugins")?;
    let (list, _) = list.split_once(']')?;
    let names = [
        "\"cri\"",
        "\"io.containerd.grpc.v1.cri\"",
        "\"io.containerd.cri.v1.runtime\"",
    ];
    names.iter().any(|name| list.contains(name)).then(|| {
        let path = path.display();
        Fault::new(
            format!(
                "{path}: disabled_plugins disables the CRI plugin, which provides the runtime nvidia"
            ),
            shows,
            format!("remove cri from disabled_plugins in {path}, and restart containerd"),
        )
    })
}

/// Returns the programs of NVIDIA's runtimes in containerd's configuration.
fn runtime_programs(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    let values = lines.filter_map(|line| line.strip_prefix("BinaryName")?.split('"').nth(1));
    values.filter(|program| program.contains(RUNTIME))
}

pub(super) fn runc() -> Vec<Fault> {
    let Ok(output) = Command::new("runc").arg("--version").output() else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let is_forgetful = match version_in(&text).as_deref() {
        Some([1, 1, patch, ..]) => FORGETFUL.contains(patch),
        _ => false,
    };
    let uses_systemd = Path::new("/run/systemd/system").exists();
    if !is_forgetful || !uses_systemd || !Path::new("/dev/nvidiactl").exists() {
        return Vec::new();
    }
    if Path::new("/dev/char/195:255").exists() {
        return Vec::new();
    }
    let what = "this runc forgets devices that have no link in /dev/char";
    let shows = "containers lose their GPUs at systemctl daemon-reload: NVML: Unknown Error";
    vec![Fault::new(
        what,
        shows,
        "nvidia-ctk system create-dev-char-symlinks --create-all, at each boot",
    )]
}
