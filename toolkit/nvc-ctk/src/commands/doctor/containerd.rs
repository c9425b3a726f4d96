//! Checks containerd's configuration, and what the running containerd knows of it.

use std::path::Path;

use nvc_cdi::Registry;
use nvc_policy::config::Config;
use serde_json::Value;

use super::engines::{RUNTIME, name_option, registration};
use super::pods::{NO_PODS, Pods};
use super::{Finding, read, specifications, toolkit};
use crate::ask::{ask, find};
use crate::commands::repair::{step, word};
use crate::engine::Text;
use crate::engine::containerd::{self, CONFIG, DROP_IN};
use crate::engine::edits::Engine;

const SOCKET: &str = "/run/containerd/containerd.sock";

pub(super) fn all(config: &Config, registry: &Registry) -> Vec<Finding> {
    findings(config, registry).unwrap_or_else(|finding| vec![finding])
}

fn findings(config: &Config, registry: &Registry) -> Result<Vec<Finding>, Finding> {
    let pods = Pods::read(Engine::Containerd, "containerd")?;
    let (files, runtimes) = (&pods.files, pods.runtimes()?);
    let mut findings = Vec::from_iter(not_imported(files));
    if findings.is_empty() && runtimes.is_empty() {
        // docker's own containerd needs none.
        return Ok(match find("dockerd") {
            Some(_) => Vec::new(),
            None => pods.not_registered(),
        });
    }
    findings.extend(specifications::unread_of(registry, "containerd", files));
    let main = files.first();
    findings.extend(main.and_then(cri_is_disabled));
    findings.extend(pods.missing(&runtimes, drop_in_option));
    for file in files.get(1..).unwrap_or_default() {
        findings.extend(main.and_then(|main| hidden(main, file)));
    }
    // A file that is wrong is to be corrected first.
    if findings.is_empty() {
        findings.extend(known().and_then(|known| pods.unknown(&runtimes, &known)));
    }
    if !config.accept_annotations {
        let file = files.iter().find(|file| disables_cdi(&file.text));
        findings.extend(file.map(|file| {
            let what = format!("{}: containerd's CDI is switched off", file.path.display());
            toolkit::ignored_annotations(config, &what)
        }));
    }
    Ok(findings)
}

/// Checks for our drop-in, if the main file does not import it.
fn not_imported(files: &[Text]) -> Option<Finding> {
    if files.iter().any(|file| file.path == Path::new(DROP_IN)) {
        return None;
    }
    let text = read(DROP_IN)?;
    let own = Engine::Containerd
        .registered(Path::new(DROP_IN), &text)
        .ok()?;
    let (name, _) = own.iter().find(|(_, program)| program.contains(RUNTIME))?;
    let what = format!("{CONFIG} does not import {DROP_IN}");
    let repair = registration("containerd", &name_option(name));
    Some(Finding::wrong(what, NO_PODS, repair))
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

/// Returns the names of the runtimes that the running containerd knows.
fn known() -> Option<Vec<String>> {
    if !Path::new(SOCKET).exists() || find("crictl").is_none() {
        return None;
    }
    let endpoint = format!("unix://{SOCKET}");
    let text = ask("crictl", &["--runtime-endpoint", &endpoint, "info"]).ok()?;
    listed(&serde_json::from_str(&text).ok()?)
}

/// Returns the names of the runtimes in the answer of `crictl info`.
fn listed(info: &Value) -> Option<Vec<String>> {
    let runtimes = info.get("config")?.get("containerd")?.get("runtimes")?;
    Some(runtimes.as_object()?.keys().cloned().collect())
}

/// Checks for settings of the main file that the drop-in replaces by older ones.
fn hidden(main: &Text, drop_in: &Text) -> Option<Finding> {
    let replaces =
        containerd::version("containerd").is_some_and(|version| version.first() == Some(&1));
    let hidden = containerd::hidden(main, drop_in, replaces).ok()?;
    let (more, details) = match hidden.keys.len() {
        0 | 1 => (String::new(), Vec::new()),
        n => (format!(" and {} more", n - 1), hidden.keys.clone()),
    };
    let first = hidden.keys.first()?;
    let (own, path) = (drop_in.path.display(), main.path.display());
    let options = hidden.options + &drop_in_option(drop_in);
    Some(Finding {
        details,
        ..Finding::wrong(
            format!("{own} hides {first}{more} of {path}"),
            "an edit of containerd's configuration has no effect",
            registration("containerd", &options),
        )
    })
}

/// Returns true if containerd shall leave devices in annotations to the runtime.
fn disables_cdi(text: &str) -> bool {
    let settings = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("enable_cdi"));
    let values = settings.filter_map(|rest| rest.trim_start().strip_prefix('='));
    let mut words = values.filter_map(|value| value.split('#').next());
    words.any(|word| word.trim() == "false")
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
        assert_eq!(listed(&info), Some(vec!["runc".into(), "nvidia".into()]));
        assert_eq!(listed(&json!({ "status": {} })), None);
    }
}
