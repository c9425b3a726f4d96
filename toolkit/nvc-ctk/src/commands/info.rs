//! Prints what a bug report needs: the system, the driver, the programs with their places, and the GPUs.

use std::fs::read_to_string;

use libnvc::{Result, printable};
use nvc_cdi::{Registry, STANDARD_DIRECTORIES};
use serde_json::{Value, json};

use super::{doctor, wants_json};
use crate::ask::{ask_installed, find, version_in};
use crate::engine::edits::Engine;
use crate::line::CommandLine;
use crate::logging::print;

const OURS: [&str; 6] = [
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-cli",
    "nvidia-docker",
];
/// Programs that tell their versions.
const ENGINES: [&str; 6] = ["dockerd", "podman", "containerd", "crio", "runc", "crun"];

pub(super) fn run(line: &CommandLine) -> Result<()> {
    let as_json = wants_json(line)?;
    let mut facts = vec![("version", json!(env!("CARGO_PKG_VERSION")))];
    facts.extend(system());
    facts.extend(ENGINES.map(|name| (name, engine(name))));
    facts.extend(OURS.map(|name| (name, json!(find(name)))));
    facts.push(("configuration", json!(configurations())));
    let registry = Registry::load(&STANDARD_DIRECTORIES);
    let of_file = |file: &nvc_cdi::registry::SpecFile| {
        let (path, kind, count) = (
            file.path.display(),
            &file.spec.kind,
            file.spec.devices.len(),
        );
        format!("{path} ({kind}, {count} devices)")
    };
    let files: Vec<_> = registry.files().iter().map(of_file).collect();
    facts.push(("specification", json!(files)));
    let problems = registry.problems().iter();
    let problems = problems.map(|one| format!("{}: {}", one.path.display(), one.error.message()));
    facts.push(("skipped", json!(problems.collect::<Vec<_>>())));
    if !line.flag("no-gpus") {
        log::info!("Asking for the GPUs wakes those that sleep; --no-gpus leaves them alone");
        facts.push(("GPU", gpus(line)));
    }
    print(&if as_json {
        let facts = facts
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        format!("{:#}\n", Value::Object(facts.collect()))
    } else {
        facts
            .iter()
            .map(|(name, value)| text(name, value))
            .collect()
    })
}

/// Returns the lines of a fact: one for each value of a list.
fn text(name: &str, value: &Value) -> String {
    match value {
        Value::Array(values) => values.iter().map(|value| text(name, value)).collect(),
        Value::String(value) => format!("{name}: {}\n", printable(value)),
        _ => format!("{name}: not installed\n"),
    }
}

fn system() -> [(&'static str, Value); 3] {
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = read_to_string("/etc/os-release").unwrap_or_default();
    let mut lines = release.lines();
    let name = lines.find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let driver = read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let driver = driver.lines().next().unwrap_or("not loaded");
    [
        ("kernel", json!(kernel.trim())),
        (
            "distribution",
            json!(name.unwrap_or("unknown").trim_matches('"')),
        ),
        ("kernel driver", json!(driver)),
    ]
}

/// Returns a program's version and place; null if it is not installed.
fn engine(name: &str) -> Value {
    let Some(path) = find(name) else {
        return Value::Null;
    };
    let version = ask_installed(name, &["--version"]).ok();
    let version = version.as_deref().and_then(version_in).unwrap_or_default();
    let numbers: Vec<String> = version.iter().map(u32::to_string).collect();
    json!(format!("{} ({})", numbers.join("."), path.display()))
}

/// Returns the configuration files of engines that exist.
fn configurations() -> Vec<String> {
    let of_engine = |engine: Engine| {
        let files = engine.files_of(&engine.command_lines());
        [Some(files.config), files.drop_in]
    };
    let files = Engine::ALL.into_iter().flat_map(of_engine).flatten();
    let files = files.filter(|path| path.exists());
    files.map(|path| path.display().to_string()).collect()
}

/// Returns a line for each GPU, and for each MIG device, or the driver's error.
fn gpus(line: &CommandLine) -> Value {
    let info = match doctor::gpus(line) {
        Ok(info) => info,
        Err(error) => return json!(error.message()),
    };
    let mut lines = Vec::new();
    for gpu in &info.gpus {
        let model = gpu.model.as_str();
        lines.push(format!(
            "{}: {model} ({}, {})",
            gpu.index, gpu.uuid, gpu.busid
        ));
        let devices = gpu.mig_devices.iter();
        lines.extend(devices.map(|mig| format!("{}:{}: MIG ({})", gpu.index, mig.index, mig.uuid)));
    }
    lines.extend(
        info.failed
            .iter()
            .map(|gpu| format!("{gpu}: {}", gpu.error.message())),
    );
    json!(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_said() {
        assert_eq!(text("podman", &Value::Null), "podman: not installed\n");
        let two = json!(["0: a", "1: b\u{1b}"]);
        let lines = text("GPU", &two);
        assert!(lines.starts_with("GPU: 0: a\nGPU: 1: b") && !lines.contains('\u{1b}'));
    }
}
