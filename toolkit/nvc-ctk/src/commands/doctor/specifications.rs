//! Checks CDI specifications and their hook program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nvc_cdi::registry::SpecFile;
use nvc_cdi::{Registry, STANDARD_DIRECTORIES, version};

use super::{Finding, toolkit, version_in};
use crate::ask::ask;
use crate::commands::cdi::verify;
use crate::commands::repair::{command, step, word};
use crate::engine::matching;

/// `driver_works` is false if the driver has findings of its own: then files that need its answers are not compared.
pub(super) fn all(registry: &Registry, driver_works: bool) -> Vec<Finding> {
    let mut findings = misnamed();
    let broken = "CDI devices are missing, or containers with them do not start";
    let open = "an image can run its code as root of this machine (CVE-2025-23266)";
    let files = verify::findings(registry).into_iter();
    let files = files.filter(|finding| driver_works || !finding.is_uncompared);
    let files = files.map(|finding| (finding, broken));
    let hooks = verify::bare_hooks(registry).into_iter();
    for (found, symptom) in files.chain(hooks.map(|finding| (finding, open))) {
        let file = found.file.display().to_string();
        let what = if found.text.contains(&file) {
            found.text
        } else {
            format!("{file}: {}", found.text)
        };
        let repair = found.repair.unwrap_or_else(|| {
            step("remove the file, or let the program that made it write it again")
        });
        findings.push(Finding {
            details: found.details,
            ..Finding::wrong(what, symptom, repair)
        });
    }
    findings.extend(none(registry, driver_works));
    findings.extend(hidden(registry));
    for file in registry.files() {
        let mode = std::fs::metadata(&file.path).map_or(0o644, |facts| facts.permissions().mode());
        if mode & 0o004 == 0 {
            let what = format!("{} can be read by root only", file.path.display());
            let repair = command(format!("chmod 644 {}", word(&file.path.display())));
            findings.push(Finding::advice(
                what,
                "rootless containers do not find its devices",
                repair,
            ));
        }
    }
    findings.extend(podman(registry));
    findings
}

/// Advises to write a specification if there is none of this machine's GPUs, and the driver could say what is in it.
fn none(registry: &Registry, driver_works: bool) -> Option<Finding> {
    let mut files = registry.files().iter();
    let has_gpus = files.any(|file| file.spec.kind == "nvidia.com/gpu");
    // A file that cannot be read is a finding already.
    if has_gpus || !registry.problems().is_empty() || !driver_works {
        return None;
    }
    Some(Finding::advice(
        "no specification has this machine's GPUs",
        "podman or docker run --device nvidia.com/gpu=all: unresolvable CDI devices",
        toolkit::generate("nvidia.com/gpu", true),
    ))
}

/// Returns the files whose devices a file in a later directory defines too: one of the two goes stale unnoticed.
fn hidden(registry: &Registry) -> Vec<Finding> {
    let finding = |file: &SpecFile| {
        let names = file.spec.devices.iter();
        let mut names = names.map(|device| format!("{}={}", file.spec.kind, device.name));
        let (name, other) = names.find_map(|name| {
            let (other, _) = registry.device(&name)?;
            (other.priority > file.priority).then_some((name, other))
        })?;
        let (path, other) = (file.path.display(), other.path.display());
        let repair = "remove the one that nothing keeps up to date; the refresh unit writes /var/run/cdi/nvidia.yaml, or \
                      what /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env says";
        Some(Finding::advice(
            format!("{name} is in {path} and in {other}, which engines prefer"),
            "containers get the devices and driver files of one file, whatever is in the other",
            step(repair),
        ))
    };
    registry.files().iter().filter_map(finding).collect()
}

/// Returns files that no engine reads because of their names.
fn misnamed() -> Vec<Finding> {
    let directories = STANDARD_DIRECTORIES.iter().map(std::fs::read_dir);
    let files = directories.flatten().flatten().flatten();
    let files = files.map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "yml"));
    let finding = |path: std::path::PathBuf| {
        let renamed = path.with_extension("yaml");
        let repair = if renamed.exists() {
            step(format!("remove it, or {}", renamed.display()))
        } else {
            let (from, to) = (word(&path.display()), word(&renamed.display()));
            command(format!("mv {from} {to}"))
        };
        let path = path.display();
        Finding::wrong(
            format!("{path} is not read: names end with .yaml or .json"),
            "unresolvable CDI devices",
            repair,
        )
    };
    files.map(finding).collect()
}

/// Finds files that podman does not read: before version 5 those of a format after 0.5.0, and in 5.5 those in /var/run/cdi.
fn podman(registry: &Registry) -> Vec<Finding> {
    let found = ask("podman", &["--version"]).ok();
    let found = found.as_deref().and_then(version_in).unwrap_or_default();
    match found[..] {
        [5, 5, ..] => unread(registry).into_iter().collect(),
        [major, ..] if major < 5 => too_new(registry, major),
        _ => Vec::new(),
    }
}

/// Finds a specification that podman 5.5 reads only if containers.conf names the directory.
fn unread(registry: &Registry) -> Option<Finding> {
    let of = |file: &&SpecFile| file.spec.kind == "nvidia.com/gpu";
    let mut files = registry.files().iter().filter(of);
    let is_in_etc = |file: &SpecFile| file.path.starts_with("/etc/cdi");
    let first = files.next().filter(|file| !is_in_etc(file))?;
    if files.any(is_in_etc) || CONTAINERS.iter().any(|pattern| names_directories(pattern)) {
        return None;
    }
    Some(Finding::advice(
        format!(
            "podman 5.5 reads no specification in /var/run/cdi, as {}",
            first.path.display()
        ),
        "podman run --device nvidia.com/gpu=all: unresolvable CDI devices",
        step(
            "write cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"] below [engine] in /etc/containers/containers.conf, or let \
             the refresh unit write to /etc/cdi (NVIDIA_CTK_CDI_OUTPUT_FILE_PATH in nvidia-cdi-refresh.env)",
        ),
    ))
}

/// The files in which podman's directories of specifications can be set.
const CONTAINERS: [&str; 3] = [
    "/usr/share/containers/containers.conf",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
];

/// Returns true if one of the files that a pattern names sets podman's directories of specifications.
fn names_directories(pattern: &str) -> bool {
    let files = matching(Path::new(pattern)).into_iter();
    let mut texts = files.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.any(|text| {
        let mut lines = text.lines().map(str::trim_start);
        lines.any(|line| line.starts_with("cdi_spec_dirs"))
    })
}

fn too_new(registry: &Registry, major: u32) -> Vec<Finding> {
    let files = registry
        .files()
        .iter()
        .filter(|file| version::rank(&file.spec.cdi_version) > version::rank("0.5.0"));
    let finding = |file: &SpecFile| {
        let (path, version) = (file.path.display(), &file.spec.cdi_version);
        let what = format!("{path} has CDI version {version}, but podman {major} supports 0.5.0");
        Finding::wrong(
            what,
            "podman: unresolvable CDI devices",
            step(
                "write it again with nvidia-ctk cdi generate, without --gids and with a class without a dot",
            ),
        )
    };
    files.map(finding).collect()
}
