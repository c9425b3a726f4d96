//! Checks containerd's configuration.

use std::path::Path;

use nvc_policy::config::Config;

use super::engines::{RUNTIME, configuration, find, is_program, registration};
use super::{Finding, read, toolkit, version_in};
use crate::ask::ask;
use crate::engine::containerd::{self, CONFIG, DROP_IN};

const NO_PODS: &str = "pods with the runtime class nvidia do not start";

pub(super) fn all(config: &Config) -> Vec<Finding> {
    let path = Path::new(CONFIG);
    let text = match configuration(path, NO_PODS) {
        Ok(None) => return not_registered(),
        Ok(Some(text)) => text,
        Err(finding) => return vec![finding],
    };
    if let Err(error) = containerd::has(path, &text, "nvidia") {
        let repair = format!("correct {}, and restart containerd", path.display());
        return vec![Finding::wrong(
            error.message(),
            "containerd does not start",
            repair,
        )];
    }
    let drop_in = read(DROP_IN);
    let texts: Vec<&str> = std::iter::once(text.as_str())
        .chain(drop_in.as_deref())
        .collect();
    if !texts.iter().any(|text| text.contains(RUNTIME)) {
        return not_registered();
    }
    let mut findings = Vec::new();
    let repair = registration("containerd", "");
    let is_imported = text.contains("/etc/containerd/conf.d/");
    if drop_in.is_some() && !is_imported {
        let what = format!("{} does not import {DROP_IN}", path.display());
        findings.push(Finding::wrong(what, NO_PODS, repair.as_str()));
    }
    findings.extend(cri_is_disabled(path, &text));
    let missing = texts.iter().flat_map(|text| runtime_programs(text));
    let missing = missing.filter(|program| !is_program(program));
    findings.extend(missing.map(|program| {
        let what = format!("containerd's runtime is {program}, which is missing");
        Finding::wrong(what, NO_PODS, repair.as_str())
    }));
    findings.extend(drop_in.as_deref().and_then(|own| hidden(path, &text, own)));
    if !config.accept_annotations {
        let text = texts.iter().find(|text| disables_cdi(text));
        let path = path.display();
        findings.extend(text.map(|_| {
            toolkit::ignored_annotations(&format!("{path}: containerd's CDI is switched off"))
        }));
    }
    findings
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

/// Checks for settings of the main file that the drop-in replaces by older ones.
fn hidden(path: &Path, text: &str, drop_in_text: &str) -> Option<Finding> {
    let version = ask("containerd", &["--version"]).ok();
    let replaces = version
        .and_then(|text| version_in(&text))
        .is_some_and(|version| version.first() == Some(&1));
    let drop_in = Path::new(DROP_IN);
    let hidden = containerd::hidden(path, text, drop_in, drop_in_text, replaces).ok()?;
    let first = hidden.keys.first()?;
    let more = match hidden.keys.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let what = format!("{DROP_IN} hides {first}{more} of {}", path.display());
    let mut finding = Finding::wrong(
        what,
        "an edit of containerd's configuration has no effect",
        registration("containerd", &hidden.options),
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
fn cri_is_disabled(path: &Path, text: &str) -> Option<Finding> {
    containerd::disables_cri(path, text).then(|| {
        let path = path.display();
        Finding::wrong(
            format!(
                "{path}: disabled_plugins disables the CRI plugin, which provides the runtime nvidia"
            ),
            NO_PODS,
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
