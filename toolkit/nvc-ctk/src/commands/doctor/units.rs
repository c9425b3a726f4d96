//! Checks systemd's units: those that write the specification, and settings of engines' units that hide the GPUs.

use std::collections::BTreeMap;
use std::path::Path;

use super::Finding;
use crate::ask::ask;
use crate::commands::repair::{Repair, command, step};

const REFRESH: &str = "nvidia-cdi-refresh.service";
const ENGINES: [&str; 3] = ["docker", "containerd", "crio"];
const PROPERTIES: &str =
    "--property=Id,LoadState,UnitFileState,ActiveState,SubState,Result,PrivateDevices";

/// The properties of the units that systemd has loaded.
#[derive(Debug, Default)]
pub(super) struct Units(BTreeMap<String, BTreeMap<String, String>>);

impl Units {
    /// Asks systemd, if it runs.
    pub(super) fn ask() -> Self {
        if !Path::new("/run/systemd/system").exists() {
            return Self::default();
        }
        let engines = ENGINES.map(|name| format!("{name}.service"));
        let mut words = vec!["show", PROPERTIES, REFRESH];
        words.extend(engines.iter().map(String::as_str));
        Self::parse(&ask("systemctl", &words).unwrap_or_default())
    }

    /// Reads blocks of properties, one block for each unit.
    fn parse(text: &str) -> Self {
        let blocks = text.split("\n\n").map(|block| {
            let lines = block.lines().filter_map(|line| line.split_once('='));
            let properties = lines.map(|(name, value)| (name.into(), value.into()));
            properties.collect::<BTreeMap<String, String>>()
        });
        let known = blocks.filter(|unit| unit.get("LoadState").is_some_and(|is| is != "not-found"));
        Self(
            known
                .filter_map(|unit| Some((unit.get("Id")?.clone(), unit)))
                .collect(),
        )
    }

    fn is(&self, unit: &str, property: &str, values: &[&str]) -> bool {
        let value = self.0.get(unit).and_then(|unit| unit.get(property));
        value.is_some_and(|value| values.contains(&value.as_str()))
    }

    /// Returns the command that enables the units of the specification, if they are disabled.
    pub(super) fn enable(&self) -> Option<Repair> {
        let all = "nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer";
        let enable = format!("systemctl enable --now {all}");
        if self.is(REFRESH, "UnitFileState", &["masked", "masked-runtime"]) {
            return Some(command(format!("systemctl unmask {all}")).and(&enable));
        }
        let is_disabled = self.is(REFRESH, "UnitFileState", &["disabled"]);
        is_disabled.then(|| command(enable))
    }
}

/// `driver_works` is false if the driver has findings of its own, which let the refresh fail.
pub(super) fn all(units: &Units, driver_works: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for engine in ENGINES {
        let unit = format!("{engine}.service");
        if units.is(&unit, "PrivateDevices", &["yes"]) {
            let directory = format!("/etc/systemd/system/{unit}.d");
            // The last drop-in counts.
            let file = format!("{directory}/zz-devices.conf");
            let repair = command(format!(
                "mkdir -p {directory} && echo '[Service]' > {file} && echo PrivateDevices=no >> {file}"
            ));
            findings.push(Finding::wrong(
                format!("{unit} has PrivateDevices=yes, so {engine} sees no GPU's node"),
                "containers with CDI devices: no such file or directory /dev/nvidia0",
                repair
                    .and("systemctl daemon-reload")
                    .and(&format!("systemctl restart {engine}")),
            ));
        }
    }
    let is_repeated = units.is(REFRESH, "SubState", &["auto-restart"])
        && !units.is(REFRESH, "Result", &["success"]);
    let fails = units.is(REFRESH, "ActiveState", &["failed"]) || is_repeated;
    if let Some(enable) = units.enable() {
        findings.push(Finding::advice(
            format!("{REFRESH} is disabled"),
            "after the next boot, or a driver's update, CDI devices are missing or stale",
            enable,
        ));
    } else if fails && driver_works {
        findings.push(Finding::wrong(
            format!("{REFRESH} fails, which writes the specification"),
            "after the next boot: unresolvable CDI devices; after a driver's update, stale ones",
            step(format!(
                "see journalctl -u {REFRESH}, correct that (its settings are in \
                 /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env), then systemctl restart {REFRESH}"
            )),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let findings = all(&Units::parse(text), true).into_iter();
        findings.map(|finding| finding.what).collect()
    }

    #[test]
    fn units_that_write_no_specification_are_named() {
        let refresh = |rest: &str| format!("Id={REFRESH}\nLoadState=loaded\n{rest}\n");
        let right =
            refresh("UnitFileState=enabled\nActiveState=inactive\nSubState=dead\nResult=success");
        assert_eq!(found(&right), [""; 0]);
        let fails = "UnitFileState=enabled\nActiveState=activating\nSubState=auto-restart\nResult=exit-code";
        assert!(found(&refresh(fails))[0].contains("fails"));
        assert!(all(&Units::parse(&refresh(fails)), false).is_empty());
        assert!(found(&refresh("UnitFileState=disabled"))[0].contains("is disabled"));
        let masked =
            Units::parse("Id=nvidia-cdi-refresh.service\nLoadState=masked\nUnitFileState=masked\n");
        let repair = masked.enable();
        assert!(repair.is_some_and(|repair| repair.text().starts_with("systemctl unmask")));
        let absent = "Id=docker.service\nLoadState=not-found\nPrivateDevices=no\n";
        assert_eq!(found(absent), [""; 0]);
        let private = format!("{right}\nId=docker.service\nLoadState=loaded\nPrivateDevices=yes\n");
        assert!(found(&private)[0].contains("docker sees no GPU's node"));
    }
}
