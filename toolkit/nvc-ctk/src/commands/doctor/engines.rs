//! Checks what engines share, runc, and podman's hooks.

use std::path::{Path, PathBuf};

use nvc_hostfile::programs;
use serde_json::Value;

use super::{Finding, read as text_of, version_in};
use crate::ask::{ask, find};
use crate::commands::repair::{Repair, command, step, word};
use crate::commands::system::links;
use crate::engine::{matching, oci_hook, read};

/// Patch levels of runc that lose devices without a link in /dev/char when systemd reloads.
const LOSES_DEVICES: [u32; 4] = [3, 4, 5, 6];

pub(super) const RUNTIME: &str = "nvidia-container-runtime";

/// Returns the commands that register the runtime with an engine, with further options of `configure`.
pub(super) fn registration(engine: &str, options: &str) -> Repair {
    let configure = format!("nvidia-ctk runtime configure --runtime={engine}{options}");
    let restart = format!("systemctl restart {engine}");
    match find(RUNTIME) {
        Some(_) => command(configure).and(&restart),
        None => step(format!("install nvidia-container-toolkit-base ({RUNTIME})"))
            .and(&configure)
            .and(&restart),
    }
}

/// Returns the option of `configure` for a runtime of this name.
pub(super) fn name_option(name: &str) -> String {
    match name {
        "nvidia" => String::new(),
        name => format!(" --nvidia-runtime-name={}", word(&name)),
    }
}

/// Reads an engine's configuration; None if it does not exist.
pub(super) fn configuration(path: &Path, symptom: &'static str) -> Result<Option<String>, Finding> {
    read(path).map_err(|error| {
        let repair = format!("correct {}", path.display());
        Finding::wrong(error.message(), symptom, step(repair))
    })
}

/// Returns true if a path, or a name in PATH, is a program.
pub(super) fn is_program(name: &str) -> bool {
    if name.contains('/') {
        return programs::is_executable(Path::new(name));
    }
    !name.is_empty() && find(name).is_some()
}

pub(super) fn runc() -> Option<Finding> {
    let version = version_in(&ask("runc", &["--version"]).ok()?)?;
    let is_forgetful = matches!(version[..], [1, 1, patch, ..] if LOSES_DEVICES.contains(&patch));
    let mut paths = ["/run/systemd/system", "/dev/nvidiactl"].iter();
    if !is_forgetful || !paths.all(|path| Path::new(path).exists()) {
        return None;
    }
    let node = links::missing()?;
    let what = format!(
        "this runc forgets devices that have no link in /dev/char, as {}",
        node.display()
    );
    let symptom = "containers lose their GPUs at systemctl daemon-reload: NVML: Unknown Error";
    // Not --create-all, which needs GPUs on PCI: the nodes exist.
    let repair = command("nvidia-ctk system create-dev-char-symlinks");
    Some(Finding::wrong(what, symptom, repair).note(
        "the packages do this at installation and at each boot; start containers again that have lost their GPU",
    ))
}

/// Checks the hooks that podman runs in every container.
pub(super) fn hooks() -> Vec<Finding> {
    let patterns = oci_hook::DIRECTORIES.map(|directory| Path::new(directory).join("*.json"));
    let files = patterns.iter().flat_map(|pattern| matching(pattern));
    // An older toolkit's package may have left hooks whose program is gone.
    let finding = |file: PathBuf| {
        let text = text_of(file.to_str()?)?;
        let hook: Value = serde_json::from_str(&text).ok()?;
        let program = hook.get("hook")?.get("path")?.as_str()?;
        let is_gone = program.contains("nvidia") && !Path::new(program).exists();
        let file = file.display();
        is_gone.then(|| {
            Finding::wrong(
                format!("{file} runs {program}, which is missing"),
                "podman: no container starts, or none gets a GPU",
                command(format!("rm {}", word(&file))),
            )
            .note("podman run --device nvidia.com/gpu=all needs no hook")
        })
    };
    files.filter_map(finding).collect()
}
