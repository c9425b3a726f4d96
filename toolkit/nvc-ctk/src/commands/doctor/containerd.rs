//! Checks containerd's configuration, and what the running containerd knows of it.

use std::collections::BTreeMap;
use std::path::Path;

use nvc_cdi::Registry;
use nvc_policy::config::Config;
use serde_json::Value;

use super::engines::{RUNTIME, configuration, find, is_program, name_option, registration};
use super::{Finding, read, specifications, toolkit};
use crate::ask::ask;
use crate::commands::repair::{Repair, command, step, word};
use crate::engine::Text;
use crate::engine::containerd::{self, CONFIG, DROP_IN};
use crate::engine::daemon::command_lines;
use crate::engine::edits::Engine;

const NO_PODS: &str = "pods with the runtime class nvidia do not start";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// A runtime of NVIDIA's: its program, and the file that registers it.
#[derive(Debug)]
struct Registered<'a> {
    program: String,
    file: &'a Text,
}

pub(super) fn all(config: &Config, registry: &Registry) -> Vec<Finding> {
    let lines = command_lines("containerd", "containerd.service");
    let files = match files(&Engine::Containerd.files_of(&lines).config) {
        Ok(files) if files.is_empty() => return not_registered(),
        Ok(files) => files,
        Err(finding) => return vec![finding],
    };
    let runtimes = match registered(&files) {
        Ok(runtimes) => runtimes,
        Err(finding) => return vec![finding],
    };
    let mut findings = Vec::new();
    if let Some(unread) = not_imported(&files) {
        findings.push(unread);
    } else if runtimes.is_empty() {
        return not_registered();
    }
    findings.extend(specifications::unread_of(registry, "containerd", &files));
    let main = files.first();
    findings.extend(main.and_then(cri_is_disabled));
    for (name, runtime) in &runtimes {
        let program = &runtime.program;
        if !is_program(program) {
            let what = format!(
                "{}: containerd's runtime {name} is {program}, which is missing",
                runtime.file.path.display()
            );
            findings.push(Finding::wrong(what, NO_PODS, again(name, runtime.file)));
        }
    }
    for file in files.get(1..).unwrap_or_default() {
        findings.extend(main.and_then(|main| hidden(main, file)));
    }
    // A file that is wrong is to be corrected first.
    if findings.is_empty() {
        findings.extend(unknown(&runtimes));
    }
    if !config.accept_annotations {
        let file = files.iter().find(|file| disables_cdi(&file.text));
        findings.extend(file.map(|file| {
            let what = format!("{}: containerd's CDI is switched off", file.path.display());
            toolkit::ignored_annotations(config, &what)
        }));
    }
    findings
}

/// Returns the main file, which comes first, and those that it imports; none if it does not exist.
fn files(path: &Path) -> Result<Vec<Text>, Finding> {
    let Some(text) = configuration(path, NO_PODS)? else {
        return Ok(Vec::new());
    };
    let imported = containerd::imported(path, &text).map_err(|error| broken(path, &error))?;
    let mut files = vec![Text {
        path: path.into(),
        text,
    }];
    for path in imported {
        if let Some(text) = configuration(&path, NO_PODS)? {
            files.push(Text { path, text });
        }
    }
    Ok(files)
}

/// Returns NVIDIA's runtimes by name. The last file that has one counts.
fn registered(files: &[Text]) -> Result<BTreeMap<String, Registered<'_>>, Finding> {
    let mut all = BTreeMap::new();
    for file in files {
        let own = containerd::registered(&file.path, &file.text);
        for (name, program) in own.map_err(|error| broken(&file.path, &error))? {
            if program.contains(RUNTIME) {
                all.insert(name, Registered { program, file });
            } else {
                all.remove(&name);
            }
        }
    }
    Ok(all)
}

fn broken(path: &Path, error: &libnvc::Error) -> Finding {
    let repair = step(format!("correct {}", path.display())).and("systemctl restart containerd");
    Finding::wrong(error.message(), "containerd does not start", repair)
}

/// Checks for our drop-in, if the main file does not import it.
fn not_imported(files: &[Text]) -> Option<Finding> {
    if files.iter().any(|file| file.path == Path::new(DROP_IN)) {
        return None;
    }
    let text = read(DROP_IN)?;
    let own = containerd::registered(Path::new(DROP_IN), &text).ok()?;
    let (name, _) = own.iter().find(|(_, program)| program.contains(RUNTIME))?;
    let what = format!("{CONFIG} does not import {DROP_IN}");
    let repair = registration("containerd", &name_option(name));
    Some(Finding::wrong(what, NO_PODS, repair))
}

/// Returns the command that registers a runtime again, in the file that has it.
fn again(name: &str, file: &Text) -> Repair {
    registration("containerd", &(name_option(name) + &drop_in_option(file)))
}

/// Returns the option for a drop-in of another name. A file with more than we write is left alone: ours is read later.
fn drop_in_option(file: &Text) -> String {
    let path = file.path.as_path();
    let is_usual = path == Path::new(CONFIG) || path == Path::new(DROP_IN);
    if is_usual || !containerd::is_drop_in_of_ours(path, &file.text) {
        return String::new();
    }
    format!(" --drop-in-config={}", word(&path.display()))
}

/// Advises to register the runtime with a containerd that does not know it, unless it is only docker's.
fn not_registered() -> Vec<Finding> {
    let is_docker_s = find("dockerd").is_some();
    if is_docker_s || find("containerd").is_none() || find(RUNTIME).is_none() {
        return Vec::new();
    }
    vec![Finding::advice(
        "containerd does not know the runtime nvidia",
        "pods with the runtime class nvidia: no runtime for \"nvidia\" is configured",
        registration("containerd", ""),
    )]
}

/// Asks the running containerd whether it knows the runtimes that its files have: it reads them when it starts.
fn unknown(runtimes: &BTreeMap<String, Registered<'_>>) -> Option<Finding> {
    if !Path::new(SOCKET).exists() || find("crictl").is_none() {
        return None;
    }
    let endpoint = format!("unix://{SOCKET}");
    let text = ask("crictl", &["--runtime-endpoint", &endpoint, "info"]).ok()?;
    let known = known(&serde_json::from_str(&text).ok()?)?;
    let (name, runtime) = (runtimes.iter()).find(|(name, _)| !known.contains(name))?;
    let what = format!(
        "containerd does not know the runtime {name} that {} registers: the file was changed after it was read",
        runtime.file.path.display()
    );
    let repair = command("systemctl restart containerd");
    Some(Finding::wrong(what, NO_PODS, repair))
}

/// Returns the names of the runtimes in the answer of `crictl info`.
fn known(info: &Value) -> Option<Vec<String>> {
    let runtimes = info.get("config")?.get("containerd")?.get("runtimes")?;
    Some(runtimes.as_object()?.keys().cloned().collect())
}

/// Checks for settings of the main file that the drop-in replaces by older ones.
fn hidden(main: &Text, drop_in: &Text) -> Option<Finding> {
    let replaces =
        containerd::version("containerd").is_some_and(|version| version.first() == Some(&1));
    let found = containerd::hidden(
        &main.path,
        &main.text,
        &drop_in.path,
        &drop_in.text,
        replaces,
    );
    let hidden = found.ok()?;
    let first = hidden.keys.first()?;
    let more = match hidden.keys.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let (own, path) = (drop_in.path.display(), main.path.display());
    let what = format!("{own} hides {first}{more} of {path}");
    let mut finding = Finding::wrong(
        what,
        "an edit of containerd's configuration has no effect",
        registration("containerd", &(hidden.options + &drop_in_option(drop_in))),
    );
    if hidden.keys.len() > 1 {
        finding.details = hidden.keys;
    }
    Some(finding)
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
fn cri_is_disabled(main: &Text) -> Option<Finding> {
    containerd::disables_cri(&main.path, &main.text).then(|| {
        let path = main.path.display();
        Finding::wrong(
            format!(
                "{path}: disabled_plugins disables the CRI plugin, which provides the runtime nvidia"
            ),
            NO_PODS,
            step(format!("remove cri from disabled_plugins in {path}"))
                .and("systemctl restart containerd"),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn crictl_lists_the_runtimes() {
        let info =
            json!({ "config": { "containerd": { "runtimes": { "runc": {}, "nvidia": {} } } } });
        assert_eq!(known(&info), Some(vec!["runc".into(), "nvidia".into()]));
        assert_eq!(known(&json!({ "status": {} })), None);
    }
}
