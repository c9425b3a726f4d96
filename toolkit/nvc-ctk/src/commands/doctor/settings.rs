//! Checks settings: the toolkit's own, and SELinux.

use std::path::Path;

use nvc_policy::config::{Config, Error, lookup};

use super::{Finding, read};
use crate::ask::find;
use crate::commands::repair::{Repair, command, step, word};
use crate::line::CommandLine;

/// The file that `nvidia-ctk config` changes if no other is named.
const USUAL: &str = "/etc/nvidia-container-runtime/config.toml";

/// Returns the command that changes a setting, in the file that was read.
pub(super) fn set(config: &Config, key: &str, value: impl std::fmt::Display) -> Repair {
    let file = config
        .file
        .as_deref()
        .filter(|file| *file != Path::new(USUAL));
    let option = file.map(|file| format!(" --config={}", word(&file.display())));
    let option = option.unwrap_or_default();
    let setting = word(&format!("{key}={value}"));
    command(format!(
        "nvidia-ctk config{option} --set {setting} --in-place"
    ))
}

/// Reads the configuration; returns the defaults if it cannot be read.
pub(super) fn config(line: &CommandLine) -> (Config, Vec<Finding>) {
    let given = line.given("config").map(Path::new);
    let place = lookup::place(given, |name| std::env::var_os(name));
    let file = place.file.display();
    // Containers get the defaults without a word if it is a link to nothing.
    match lookup::load(&place, place.named || place.file.is_symlink()) {
        Err(error) => {
            let symptom = "every container that requests a GPU fails";
            let text = error.to_string();
            // Most errors name the file themselves.
            let what = if text.contains(&file.to_string()) {
                text
            } else {
                format!("{file}: {text}")
            };
            let write = format!("nvidia-ctk config default --output={}", word(&file));
            let repair = match error {
                Error::Missing(_) => step(format!(
                    "correct the file's name, or write the file: {write}"
                )),
                // An engine that mounts a file that is missing makes one.
                _ if place.file.is_dir() => command(format!("rmdir {}", word(&file))),
                _ => step(format!(
                    "correct {file}, or write it with the defaults: {write}"
                )),
            };
            let finding = Finding::fatal(what, symptom, repair);
            (Config::default(), vec![finding])
        }
        Ok(loaded) => {
            let finding = |warning: String| {
                let effect = "the setting has no effect";
                // Otherwise it is no slip: mostly a key that NVIDIA's toolkit had, and gave up.
                if warning.contains("did you mean") {
                    let repair = step(format!("correct the key in {file}"));
                    return Finding::wrong(warning, effect, repair);
                }
                let repair = step(format!("remove the key from {file}"));
                Finding::advice(warning, effect, repair)
            };
            let findings = loaded.warnings.into_iter().map(finding).collect();
            (loaded.config, findings)
        }
    }
}

pub(super) fn selinux() -> Option<Finding> {
    let is_one = |name: &str| {
        let state = read(&format!("/sys/fs/selinux/{name}")).unwrap_or_default();
        state.trim_start().starts_with('1')
    };
    // Docker confines containers only if its configuration enables that.
    let confines = |text: String| text.contains("\"selinux-enabled\": true");
    let confines =
        || find("podman").is_some() || read("/etc/docker/daemon.json").is_some_and(confines);
    let may_use = |devices: &str| is_one(&format!("booleans/container_use_{devices}"));
    let is_wrong =
        is_one("enforce") && confines() && !may_use("devices") && !may_use("xserver_devices");
    is_wrong.then(|| {
        Finding::wrong(
            "SELinux does not let containers use devices",
            "podman: permission denied on /dev/nvidia*",
            command("setsebool -P container_use_devices on"),
        )
    })
}
