//! Checks CDI specifications and their hook program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nvc_cdi::{Registry, STANDARD_DIRECTORIES, version};

use super::{Fault, version_in};
use crate::commands::cdi::verify;

pub(super) fn all(registry: &Registry) -> Vec<Fault> {
    let mut faults = misnamed();
    let broken = "CDI devices are missing, or containers with them do not start";
    let open = "an image can run its code as root of this machine (CVE-2025-23266)";
    let findings = verify::findings(registry).into_iter();
    let findings = findings.map(|finding| (finding, broken));
    let hooks = verify::bare_hooks(registry).into_iter();
    for (finding, shows) in findings.chain(hooks.map(|finding| (finding, open))) {
        let what = format!("{}: {}", finding.file.display(), finding.text);
        let repair = finding
            .repair
            .unwrap_or_else(|| "remove the file, or have its maker write it again".into());
        faults.push(Fault::new(what, shows, repair));
    }
    for file in registry.files() {
        let mode = std::fs::metadata(&file.path).map_or(0o644, |facts| facts.permissions().mode());
        if mode & 0o004 == 0 {
            let what = format!("{} can be read by root only", file.path.display());
            let repair = format!("chmod 644 {}", file.path.display());
            faults.push(Fault::new(
                what,
                "rootless containers do not find its devices",
                repair,
            ));
        }
    }
    faults.extend(too_new(registry));
    faults
}

/// Returns files that no engine reads because of their names.
fn misnamed() -> Vec<Fault> {
    let directories = STANDARD_DIRECTORIES.iter().map(std::fs::read_dir);
    let files = directories.flatten().flatten().flatten();
    let files = files.map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "yml"));
    let fault = |path: std::path::PathBuf| {
        let renamed = path.with_extension("yaml");
        let path = path.display();
        Fault::new(
            format!("{path} is not read: names end with .yaml or .json"),
            "unresolvable CDI devices",
            format!("mv {path} {}", renamed.display()),
        )
    };
    files.map(fault).collect()
}

/// Finds files that podman skips: before version 5 it supports no format after 0.5.0.
fn too_new(registry: &Registry) -> Vec<Fault> {
    let Ok(output) = Command::new("podman").arg("--version").output() else {
        return Vec::new();
    };
    let found = version_in(&String::from_utf8_lossy(&output.stdout));
    let Some([major, ..]) = found.as_deref() else {
        return Vec::new();
    };
    if *major >= 5 {
        return Vec::new();
    }
    let files = registry
        .files()
        .iter()
        .filter(|file| version::rank(&file.spec.cdi_version) > version::rank("0.5.0"));
    let fault = |file: &nvc_cdi::registry::SpecFile| {
        let (path, version) = (file.path.display(), &file.spec.cdi_version);
        let what = format!("{path} has CDI version {version}, but podman {major} supports 0.5.0");
        Fault::new(
            what,
            "podman: unresolvable CDI devices",
            "nvidia-ctk cdi generate without --gids, and a class without a dot",
        )
    };
    files.map(fault).collect()
}

pub(super) fn hook_program() -> Vec<Fault> {
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').chain(["/usr/bin", "/usr/local/bin"]);
    let found = directories
        .map(|directory| Path::new(directory).join("nvidia-cdi-hook"))
        .find(|path| path.exists());
    let Some(found) = found else {
        let what = "nvidia-cdi-hook is not in PATH";
        return vec![Fault::new(
            what,
            "containers with CDI devices do not start",
            "install nvidia-container-toolkit-base",
        )];
    };
    let mode = std::fs::metadata(&found).map_or(0, |facts| facts.permissions().mode());
    if mode & 0o111 == 0 {
        let what = format!("{} is not executable", found.display());
        let repair = format!("chmod 755 {}", found.display());
        return vec![Fault::new(
            what,
            "containers with CDI devices do not start",
            repair,
        )];
    }
    Vec::new()
}
