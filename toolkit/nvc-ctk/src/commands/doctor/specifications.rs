//! Checks CDI specifications and their hook program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nvc_cdi::registry::SpecFile;
use nvc_cdi::{Registry, STANDARD_DIRECTORIES, version};
use toml_edit::{DocumentMut, Item, TableLike, Value};

use super::units::Units;
use super::{Finding, read, toolkit, version_in};
use crate::ask::ask;
use crate::commands::cdi::verify;
use crate::commands::repair::{command, step, word};
use crate::engine::{Text, matching};

/// `driver_works` is false if the driver has findings of its own: then files that need its answers are not compared.
pub(super) fn all(registry: &Registry, units: &Units, driver_works: bool) -> Vec<Finding> {
    let mut findings = misnamed();
    let broken = "CDI devices are missing, or containers with them do not start";
    let open = "an image can run its code as root of this machine (CVE-2025-23266)";
    let files = verify::findings(registry).into_iter();
    let files = files.filter(|finding| driver_works || !finding.is_uncompared);
    // Nobody gets what another file hides, which is advice below.
    let files = files.filter(|finding| !is_hidden(registry, &finding.file));
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
            if std::fs::metadata(&found.file).is_ok_and(|facts| facts.len() == 0) {
                return command(format!("rm {}", word(&file)));
            }
            step("remove the file, or let the program that made it write it again")
        });
        findings.push(Finding {
            details: found.details,
            ..Finding::wrong(what, symptom, repair)
        });
    }
    findings.extend(none(registry, units, driver_works));
    findings.extend(hidden(registry));
    for file in registry.files() {
        let mode = std::fs::metadata(&file.path).map_or(0o644, |facts| facts.permissions().mode());
        if mode & 0o004 == 0 {
            let path = file.path.display();
            let what = format!("{path} can be read by root only");
            let symptom = "rootless containers do not find its devices";
            let repair = command(format!("chmod 644 {}", word(&path)));
            findings.push(Finding::advice(what, symptom, repair));
        }
    }
    findings.extend(podman(registry));
    findings
}

/// Advises to write a specification if there is none of this machine's GPUs, and the driver could say what is in it.
fn none(registry: &Registry, units: &Units, driver_works: bool) -> Option<Finding> {
    let mut files = registry.files().iter();
    let has_gpus = files.any(|file| file.spec.kind == "nvidia.com/gpu");
    // A file that cannot be read is a finding already.
    (!has_gpus && registry.problems().is_empty() && driver_works).then(|| {
        // What these units write is there after the next boot, too.
        let repair = units.enable();
        Finding::advice(
            "no specification has this machine's GPUs",
            "podman or docker run --device nvidia.com/gpu=all: unresolvable CDI devices",
            repair.unwrap_or_else(|| toolkit::generate("nvidia.com/gpu", true)),
        )
    })
}

/// Returns true if files in later directories define all devices of a file.
fn is_hidden(registry: &Registry, path: &Path) -> bool {
    let mut files = registry.files().iter();
    files.find(|file| file.path == path).is_some_and(|file| {
        let mut names = file.spec.devices.iter();
        names.all(|device| {
            let found = registry.device(&format!("{}={}", file.spec.kind, device.name));
            found.is_some_and(|(other, _)| other.priority > file.priority)
        })
    })
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
            if is_hidden(registry, &file.path) {
                command(format!("rm {}", word(&file.path.display())))
            } else {
                step(repair)
            },
        ))
    };
    registry.lasting_files().filter_map(finding).collect()
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

/// Finds files that podman does not read: before version 5 those of a format after 0.5.0, and those in directories that it
/// is not told of. In version 5.5 that is /var/run/cdi.
fn podman(registry: &Registry) -> Vec<Finding> {
    let text = ask("podman", &["--version"]).unwrap_or_default();
    let (mut findings, usual) = match version_in(&text).as_deref() {
        None => return Vec::new(),
        Some([major, ..]) if *major < 5 => (too_new(registry, *major), Vec::new()),
        Some([5, 5, ..]) => (Vec::new(), vec!["/etc/cdi".into()]),
        Some(_) => (Vec::new(), Vec::new()),
    };
    let told = CONTAINERS.iter().flat_map(|file| matching(Path::new(file)));
    let mut told = told.filter_map(|path| directories(&read(path.to_str()?)?));
    let read = told.next_back().unwrap_or(usual);
    let setting = "cdi_spec_dirs below [engine] in /etc/containers/containers.conf";
    findings.extend(unread(registry, "podman", setting, &read));
    findings
}

/// The files in which podman's directories of specifications can be set.
const CONTAINERS: [&str; 3] = [
    "/usr/share/containers/containers.conf",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
];

/// Returns the directories of specifications that a file of podman, containerd or CRI-O names.
fn directories(text: &str) -> Option<Vec<PathBuf>> {
    fn below(table: &dyn TableLike) -> Option<Vec<PathBuf>> {
        if let Some(list) = table.get("cdi_spec_dirs").and_then(Item::as_array) {
            let paths = list.iter().filter_map(Value::as_str);
            return Some(paths.map(PathBuf::from).collect());
        }
        table
            .iter()
            .find_map(|(_, item)| below(item.as_table_like()?))
    }
    below(text.parse::<DocumentMut>().ok()?.as_table())
}

/// As [`unread`], for an engine whose last file with the key `cdi_spec_dirs` counts.
pub(super) fn unread_of(registry: &Registry, engine: &str, files: &[Text]) -> Option<Finding> {
    let named = |file: &Text| Some((file.path.display().to_string(), directories(&file.text)?));
    let (path, read) = files.iter().filter_map(named).next_back()?;
    unread(registry, engine, &format!("cdi_spec_dirs in {path}"), &read)
}

/// Finds that an engine reads other directories than those with this machine's specification. Without any directory its
/// CDI is off, or it reads the usual ones.
pub(super) fn unread(
    registry: &Registry,
    engine: &str,
    setting: &str,
    directories: &[PathBuf],
) -> Option<Finding> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
    let read: Vec<_> = directories.iter().map(|path| real(path)).collect();
    let is_read = |file: &SpecFile| {
        file.path
            .parent()
            .is_some_and(|own| read.contains(&real(own)))
    };
    let files = registry.files().iter();
    let mut files = files.filter(|file| file.spec.kind == "nvidia.com/gpu");
    let first = files.next()?;
    if directories.is_empty() || is_read(first) || files.any(is_read) {
        return None;
    }
    let names = directories.iter().map(|path| path.display().to_string());
    let names: Vec<_> = names.collect();
    let what = format!(
        "{engine} reads specifications in {} only, and the GPUs' is {}",
        names.join(" and "),
        first.path.display()
    );
    let directory = first.path.parent().unwrap_or(Path::new("/var/run/cdi"));
    let symptom = "run --device nvidia.com/gpu=all: unresolvable CDI devices";
    let mut repair = step(format!("add \"{}\" to {setting}", directory.display()));
    if engine != "podman" {
        repair = repair.and(&format!("restart {engine}"));
    }
    // Whoever runs podman may want another way.
    Some(match engine {
        "podman" => Finding::advice(what, symptom, repair),
        _ => Finding::wrong(what, symptom, repair),
    })
}

fn too_new(registry: &Registry, major: u32) -> Vec<Finding> {
    let files = registry
        .lasting_files()
        .filter(|file| version::rank(&file.spec.cdi_version) > version::rank("0.5.0"));
    let finding = |file: &SpecFile| {
        let (path, version) = (file.path.display(), &file.spec.cdi_version);
        let what = format!("{path} has CDI version {version}, but podman {major} supports 0.5.0");
        let repair = "write it again with nvidia-ctk cdi generate, without --gids and with a class without a dot";
        Finding::wrong(what, "podman: unresolvable CDI devices", step(repair))
    };
    files.map(finding).collect()
}
