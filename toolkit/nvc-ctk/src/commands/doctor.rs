//! Diagnoses this machine: reports each problem with its symptom and repair.
//!
//! There are three levels. *Wrong* is what does not work although somebody has set it up; only this sets the exit code.
//! *Advice* is what works differently than one may expect, or would work better. All else is *ok*. What stops all
//! containers comes before what stops some.

mod containerd;
mod crio;
mod daemon;
mod docker;
mod driver;
mod engines;
mod hardware;
mod libraries;
mod nodes;
mod place;
mod pods;
mod settings;
mod specifications;
mod toolkit;
mod units;

use std::io::IsTerminal as _;
use std::path::Path;

use libnvc::host::DeviceInfo;
use libnvc::{Result, printable};
use nvc_cdi::{Registry, STANDARD_DIRECTORIES};
use serde_json::{Value, json};

use super::repair::Repair;
use super::wants_json;
use crate::ask::version_in;
use crate::engine;
use crate::line::CommandLine;
use crate::logging::print;
use place::Place;

/// Symptom of a driver that does not work at all.
const NO_GPU: &str = "nvidia-smi fails, and no container gets a GPU";

/// A check and its findings.
#[derive(Debug)]
struct Check {
    name: &'static str,
    findings: Vec<Finding>,
}

/// Severity of a finding, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// No container gets a GPU. Users see the same word as for the next one.
    Fatal,
    /// Some containers get none, or one way to request GPUs does not work.
    Wrong,
    Advice,
}

impl Level {
    const ALL: [Self; 3] = [Self::Fatal, Self::Wrong, Self::Advice];

    fn is_wrong(self) -> bool {
        self != Self::Advice
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    what: String,
    /// What users see.
    symptom: &'static str,
    repair: Repair,
    /// A remark about the repair.
    note: Option<&'static str>,
    /// More about it, printed on request.
    details: Vec<String>,
}

impl Finding {
    fn wrong(what: impl Into<String>, symptom: &'static str, repair: Repair) -> Self {
        Self {
            level: Level::Wrong,
            what: what.into(),
            symptom,
            repair,
            note: None,
            details: Vec::new(),
        }
    }

    fn fatal(what: impl Into<String>, symptom: &'static str, repair: Repair) -> Self {
        Self {
            level: Level::Fatal,
            ..Self::wrong(what, symptom, repair)
        }
    }

    fn advice(what: impl Into<String>, symptom: &'static str, repair: Repair) -> Self {
        Self {
            level: Level::Advice,
            ..Self::wrong(what, symptom, repair)
        }
    }

    fn note(self, text: &'static str) -> Self {
        Self {
            note: Some(text),
            ..self
        }
    }
}

/// The exit code is 1 if something is wrong.
pub(super) fn run(line: &CommandLine) -> Result<u8> {
    let as_json = wants_json(line)?;
    let checks = checks(line);
    print(&if as_json {
        to_json(&checks)
    } else {
        to_text(&checks, line.flag("details"), has_colours())
    })?;
    Ok(u8::from(count(&checks, true) > 0))
}

/// Asks the driver of this machine for its GPUs.
pub(super) fn gpus(line: &CommandLine) -> Result<DeviceInfo> {
    driver::gpus(&Place::find(&settings::config(line).0))
}

fn checks(line: &CommandLine) -> Vec<Check> {
    let (config, mut of_config) = settings::config(line);
    let place = Place::find(&config);
    let registry = Registry::load(&STANDARD_DIRECTORIES);
    let file_is_read = of_config.is_empty() || config.file.is_some();
    let (module, libraries) = (driver::module(&place), libraries::all(&place));
    // NVML fails without them, which is reported already.
    let mut both = module.iter().chain(&libraries);
    let works = both.all(|finding| !finding.level.is_wrong());
    let nvml = works.then(|| driver::nvml(&place));
    let (nvml, persists) = nvml.unzip();
    let nvml = nvml.map(|findings| ("management library", findings));
    let mut of_driver = vec![
        ("kernel module", module),
        ("device nodes", nodes::all(&place)),
        ("libraries", libraries),
    ];
    of_driver.extend(nvml);
    of_driver.push(("fabric manager", Vec::from_iter(hardware::fabric())));
    let mut lists = of_driver.iter().flat_map(|(_, findings)| findings);
    let driver_works = lists.all(|finding| !finding.level.is_wrong());
    // A file that cannot be read says nothing, and no command can change it.
    if file_is_read {
        of_config.extend(toolkit::settings(&config, &place, &registry, driver_works));
    }
    let units = units::Units::ask();
    let others = [
        (
            "persistence",
            Vec::from_iter(driver::persistence(&place, persists == Some(true))),
        ),
        ("MPS", Vec::from_iter(driver::mps(&place))),
        ("config.toml", of_config),
        ("SELinux", Vec::from_iter(settings::selinux())),
        ("programs", toolkit::programs(&config, &registry)),
        ("docker", docker::all(&registry)),
        ("containerd", containerd::all(&config, &registry)),
        ("CRI-O", crio::all(&registry)),
        ("systemd", units::all(&units, driver_works)),
        ("runc", Vec::from_iter(engines::runc())),
        ("podman", engines::hooks()),
        (
            "CDI specifications",
            specifications::all(&registry, &units, driver_works),
        ),
    ];
    let all = of_driver.into_iter().chain(others);
    all.map(|(name, findings)| Check { name, findings })
        .collect()
}

fn count(checks: &[Check], is_wrong: bool) -> usize {
    let findings = checks.iter().flat_map(|check| &check.findings);
    let findings = findings.filter(|finding| finding.level.is_wrong() == is_wrong);
    findings.count()
}

fn count_ok(checks: &[Check]) -> usize {
    let ok = checks.iter().filter(|check| check.findings.is_empty());
    ok.count()
}

/// Returns true if the answer goes to a terminal whose user has not asked for no colours (no-color.org).
fn has_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stdout().is_terminal()
}

fn to_text(checks: &[Check], with_details: bool, with_colours: bool) -> String {
    let mut text = String::new();
    for level in Level::ALL {
        let word = match (level.is_wrong(), with_colours) {
            (true, true) => "\x1b[1;31mWRONG   \x1b[0m",
            (true, false) => "WRONG   ",
            (false, _) => "advice  ",
        };
        for check in checks {
            let findings = check.findings.iter();
            for finding in findings.filter(|finding| finding.level == level) {
                // Some words are a daemon's or a file's, and must neither forge a line nor reach the terminal raw.
                text += &format!("{word} {}: {}\n", check.name, printable(&finding.what));
                text += &format!("         symptom: {}\n", printable(&finding.symptom));
                text += &format!("         repair: {}\n", printable(finding.repair.text()));
                if let Some(note) = finding.note {
                    text += &format!("         note: {}\n", printable(note));
                }
                match finding.details.len() {
                    0 => {}
                    _ if with_details => {
                        for detail in &finding.details {
                            text += &format!("         - {}\n", printable(detail));
                        }
                    }
                    n => text += &format!("         details: {n}, with --details\n"),
                }
            }
        }
    }
    for check in checks.iter().filter(|check| check.findings.is_empty()) {
        text += &format!("ok       {}\n", check.name);
    }
    let (wrong, advice) = (count(checks, true), count(checks, false));
    text + &format!("{wrong} wrong, {advice} advice, {} ok\n", count_ok(checks))
}

fn to_json(checks: &[Check]) -> String {
    let finding = |finding: &Finding| {
        json!({
            "level": if finding.level.is_wrong() { "wrong" } else { "advice" },
            "what": finding.what,
            "symptom": finding.symptom,
            "repair": finding.repair.text(),
            // The same, if a shell can run it.
            "command": finding.repair.as_command(),
            "note": finding.note,
            "details": finding.details,
        })
    };
    let check = |check: &Check| {
        let findings: Vec<Value> = check.findings.iter().map(finding).collect();
        json!({ "check": check.name, "ok": findings.is_empty(), "findings": findings })
    };
    format!(
        "{:#}\n",
        json!({
            "checks": checks.iter().map(check).collect::<Vec<_>>(),
            "wrong": count(checks, true),
            "advice": count(checks, false),
            "ok": count_ok(checks),
        })
    )
}

/// Returns a file's text, if it can be read.
fn read(path: &str) -> Option<String> {
    engine::read(Path::new(path)).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::super::repair;
    use super::*;

    #[test]
    fn words_of_others_forge_no_line() {
        let repair = repair::step("r\n");
        let what = "dockerd's \x1b]0;x\x07\nok       all";
        let finding = Finding::wrong(what, "s", repair).note("\nWRONG");
        let checks = [Check {
            name: "docker",
            findings: vec![finding],
        }];
        let text = to_text(&checks, true, false);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(!text.contains(['\x1b', '\x07']), "{text}");
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let check = |name, findings| Check { name, findings };
        let mut stale = Finding::wrong("b", "s", repair::command("r")).note("n");
        stale.details = vec!["d1".into(), "d2".into()];
        let checks = [
            check("one", vec![Finding::advice("a", "s", repair::step("r"))]),
            check("two", vec![]),
            check("three", vec![stale]),
        ];
        let text = to_text(&checks, false, false);
        assert_eq!(
            text,
            "WRONG    three: b\n         symptom: s\n         repair: r\n         note: n\n         details: 2, with --details\n\
             advice   one: a\n         symptom: s\n         repair: r\n\
             ok       two\n\
             1 wrong, 1 advice, 1 ok\n"
        );
        let text = to_text(&checks, true, false);
        assert!(text.contains("note: n\n         - d1\n         - d2\nadvice"));
        let text = to_text(&checks, false, true);
        assert!(
            text.starts_with("\x1b[1;31mWRONG   \x1b[0m three: b\n"),
            "{text}"
        );
    }
}
