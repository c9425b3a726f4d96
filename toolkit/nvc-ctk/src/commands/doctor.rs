//! Diagnoses this machine: reports each problem with its symptom and repair.

mod driver;
mod engines;
mod hardware;
mod libraries;
mod place;
mod settings;
mod specifications;
mod toolkit;

use libnvc::Result;
use nvc_cdi::{Registry, STANDARD_DIRECTORIES};
use serde_json::json;

use super::invalid;
use crate::line::CommandLine;
use crate::logging::print;
use place::Place;

/// Symptom of a driver that does not work at all.
const NO_GPU: &str = "nvidia-smi fails, and no container gets a GPU";

/// A check and its findings.
#[derive(Debug)]
struct Check {
    name: &'static str,
    faults: Vec<Fault>,
}

#[derive(Debug, PartialEq, Eq)]
struct Fault {
    what: String,
    /// Symptom for users.
    shows: &'static str,
    /// The command or step that repairs it.
    repair: String,
}

impl Fault {
    fn new(what: impl Into<String>, shows: &'static str, repair: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            shows,
            repair: repair.into(),
        }
    }
}

/// The exit code is 1 if there is a problem.
pub(super) fn run(line: &CommandLine) -> Result<u8> {
    let as_json = match line.text("format") {
        "text" => false,
        "json" => true,
        other => return Err(invalid(format!("invalid --format value: {other}"))),
    };
    let (config, mut of_config) = settings::config(line);
    let place = Place::find(&config);
    let registry = Registry::load(&STANDARD_DIRECTORIES);
    of_config.extend(toolkit::settings(&config, &place, &registry));
    let checks = [
        ("kernel module", driver::module(&place)),
        ("device nodes", driver::nodes(&place)),
        ("libraries", libraries::all(&place)),
        ("management library", driver::nvml(&place)),
        ("fabric manager", hardware::fabric()),
        ("persistence daemon", driver::persistence(&place)),
        ("config.toml", of_config),
        ("SELinux", settings::selinux()),
        ("docker", engines::docker()),
        ("containerd", engines::containerd(&config)),
        ("runc", engines::runc()),
        (
            "engines and programs",
            toolkit::programs(&config, &registry),
        ),
        ("CDI specifications", specifications::all(&registry)),
        ("hook program", specifications::hook_program()),
    ];
    let checks = checks.map(|(name, faults)| Check { name, faults });
    print(&if as_json {
        to_json(&checks)
    } else {
        to_text(&checks)
    })?;
    Ok(u8::from(
        checks.iter().any(|check| !check.faults.is_empty()),
    ))
}

fn to_text(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        if check.faults.is_empty() {
            text += &format!("ok       {}\n", check.name);
        }
        for fault in &check.faults {
            text += &format!("WRONG    {}: {}\n", check.name, fault.what);
            text += &format!(
                "         shows as: {}\n         repair: {}\n",
                fault.shows, fault.repair
            );
        }
    }
    text
}

fn to_json(checks: &[Check]) -> String {
    let fault =
        |fault: &Fault| json!({ "what": fault.what, "shows": fault.shows, "repair": fault.repair });
    let check = |check: &Check| {
        let faults: Vec<_> = check.faults.iter().map(fault).collect();
        json!({ "check": check.name, "ok": faults.is_empty(), "faults": faults })
    };
    format!(
        "{:#}\n",
        json!({ "checks": checks.iter().map(check).collect::<Vec<_>>() })
    )
}

/// Returns a file's text, if it can be read.
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Returns the first number of the form `1.2.3` in a text.
fn version_in(text: &str) -> Option<Vec<u32>> {
    let word = text
        .split([' ', '\n', ',', '-', '+', '~'])
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(
        word.split('.')
            .map_while(|part| part.parse().ok())
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn versions_are_found() {
        assert_eq!(version_in("runc version 1.1.5+ds1\n"), Some(vec![1, 1, 5]));
        assert_eq!(version_in("podman version 4.3.1"), Some(vec![4, 3, 1]));
        assert_eq!(version_in("none"), None);
    }
}
