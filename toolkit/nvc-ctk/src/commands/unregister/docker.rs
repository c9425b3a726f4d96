//! Makes a running dockerd forget a runtime that its file no longer has.
//!
//! dockerd reads its file again when it is reloaded, with status 0 even if it refuses the file; and it keeps a default
//! runtime that the file no longer names. So the default is set to docker's own first, and each time docker is asked
//! what it took.

use std::path::Path;

use libnvc::Result;
use log::info;
use nvc_hostfile::HostFile;
use serde_json::Value;

use super::programs::Programs;
use crate::ask::ask_installed;
use crate::engine::daemon::CommandLine;
use crate::engine::docker;
use crate::engine::edits::Edit;

/// docker's own runtime.
const OWN: &str = "runc";

const RESTART: &str = "Restart docker to apply that: systemctl restart docker";

/// For a dockerd that systemd does not run.
const RESTART_BY_HAND: &str = "If dockerd runs, restart it to apply that";

/// Returns what the administrator must do if dockerd's command line adds a program that goes, or has the runtime of one as
/// the default: it counts, whatever is in the file. `gone` are the runtimes that the file loses.
pub(super) fn last(
    daemon: &[CommandLine],
    gone: &[String],
    programs: &Programs<'_>,
) -> Option<String> {
    daemon.iter().find_map(|line| {
        let added = line.values("add-runtime", None).into_iter();
        let added = added.filter_map(|value| value.split_once('='));
        let added: Vec<_> = added.filter(|(_, path)| programs.include(path)).collect();
        let is_gone = |name: &&str| {
            gone.iter().any(|other| other == name) || added.iter().any(|(other, _)| other == name)
        };
        let mut defaults = line.values("default-runtime", None).into_iter();
        let options: &str = match (defaults.any(|name| is_gone(&name)), added.is_empty()) {
            (true, true) => "--default-runtime",
            (true, false) => "--default-runtime and --add-runtime",
            (false, false) => "--add-runtime",
            (false, true) => return None,
        };
        let then = if is_run_by_systemd() {
            "systemctl restart docker"
        } else {
            "restart dockerd"
        };
        Some(format!(
            "{}: remove {options} from dockerd's command line, then: {then}",
            line.origin
        ))
    })
}

/// Writes the file, and makes a dockerd of systemd take it. If that fails, `lasts` gets the command that does.
pub(super) fn write(edit: Edit, had_default: bool, lasts: &mut Vec<String>) -> Result<()> {
    let path = edit.change.path.clone();
    let runs = is_run_by_systemd();
    if !(had_default && runs) {
        edit.carry_out()?;
        if !(runs && reload(&|info| default_of(info).is_some())) {
            let last = if runs { RESTART } else { RESTART_BY_HAND };
            lasts.push(last.into());
        }
        return Ok(());
    }
    let after = edit.change.after.clone();
    let with_own = docker::with_default(&path, after.as_deref(), OWN)?;
    edit.file.replace(&with_own, 0o644)?;
    let is_taken = reload(&|info| default_of(info) == Some(OWN));
    let file = HostFile::open(&path)?;
    match after {
        Some(text) => file.replace(&text, 0o644)?,
        None => file.remove()?,
    }
    if is_taken && reload(&|info| default_of(info) == Some(OWN)) {
        info!("dockerd's default runtime is {OWN}");
    } else {
        lasts.push(RESTART.into());
    }
    Ok(())
}

fn default_of(info: &Value) -> Option<&str> {
    info.get("DefaultRuntime").and_then(Value::as_str)
}

fn systemctl(arguments: &[&str]) -> bool {
    ask_installed("systemctl", arguments).is_ok()
}

fn is_run_by_systemd() -> bool {
    Path::new("/run/systemd/system").exists() && systemctl(&["is-active", "-q", "docker.service"])
}

/// Reloads docker; returns true if it then says what it should.
fn reload(is_right: &dyn Fn(&Value) -> bool) -> bool {
    systemctl(&["reload", "docker.service"])
        && (0..10).any(|_| {
            let info = ask_installed("docker", &["info", "--format", "{{json .}}"]).ok();
            let info = info.and_then(|text| serde_json::from_str(&text).ok());
            let is_right = info.as_ref().is_some_and(is_right);
            if !is_right {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            is_right
        })
}
