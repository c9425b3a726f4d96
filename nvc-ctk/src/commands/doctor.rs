//! Diagnoses this machine: reports each problem with its symptom and repair.

mod driver;
mod engines;
mod settings;
mod specifications;

use libnvc::Result;
use serde_json::json;

use super::invalid;
use crate::line::CommandLine;
use crate::logging::print;

/// A check and its findings.
#[derive(Debug)]
struct Check {
    name: &'static str,
    faults: Vec<Fault>,
}

/// A problem.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    /// Description.
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
    let checks = [
        ("kernel module", driver::module()),
        ("device nodes", driver::nodes()),
        ("libraries", driver::libraries()),
        ("management library", driver::nvml()),
        ("persistence daemon", driver::persistence()),
        ("config.toml", settings::config(line)),
        ("SELinux", settings::selinux()),
        ("docker", engines::docker()),
        ("containerd", engines::containerd()),
        ("runc", engines::runc()),
        ("CDI specifications", specifications::all()),
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
