//! Checks settings: the toolkit's own, and SELinux.

use std::path::Path;

use nvc_hostfile::programs;
use nvc_policy::config::{Config, lookup};

use super::{Finding, read};
use crate::line::CommandLine;

/// Reads the configuration; returns the defaults if it cannot be read.
pub(super) fn config(line: &CommandLine) -> (Config, Vec<Finding>) {
    let given = line.given("config").map(Path::new);
    let place = lookup::place(given, |name| std::env::var_os(name));
    let file = place.file.display();
    match lookup::load(&place, place.named) {
        Err(error) => {
            let symptom = "every container that requests a GPU fails";
            let repair = format!("correct {file}; nvidia-ctk config default prints the defaults");
            let finding = Finding::wrong(format!("{file}: {error}"), symptom, repair);
            (Config::default(), vec![finding])
        }
        Ok(loaded) => {
            let finding = |warning| {
                let repair = format!("correct the key in {file}");
                Finding::wrong(warning, "the setting has no effect", repair)
            };
            let findings = loaded.warnings.into_iter().map(finding).collect();
            (loaded.config, findings)
        }
    }
}

pub(super) fn selinux() -> Vec<Finding> {
    if read("/sys/fs/selinux/enforce").as_deref().map(str::trim) != Some("1") {
        return Vec::new();
    }
    let path = std::env::var_os("PATH");
    let has_podman = programs::find("podman", &programs::directories(path.as_deref())).is_some();
    // Docker confines containers only if its configuration enables that.
    let confines = |text: String| text.contains("\"selinux-enabled\": true");
    if !has_podman && !read("/etc/docker/daemon.json").is_some_and(confines) {
        return Vec::new();
    }
    let is_on = |name: &str| {
        let state = read(&format!("/sys/fs/selinux/booleans/{name}")).unwrap_or_default();
        state.trim_start().starts_with('1')
    };
    if is_on("container_use_devices") || is_on("container_use_xserver_devices") {
        return Vec::new();
    }
    let what = "SELinux does not let containers use devices";
    vec![Finding::wrong(
        what,
        "podman: permission denied on /dev/nvidia*",
        "setsebool -P container_use_devices on",
    )]
}
