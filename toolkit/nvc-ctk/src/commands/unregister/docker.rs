//! Makes a running dockerd forget a runtime that its file no longer has.
//!
//! dockerd reads its file again when it is reloaded, with status 0 even if it refuses the file; and it keeps a default
//! runtime that the file no longer names. So the default is set to docker's own first, and each time docker is asked
//! what it took.

use std::path::Path;

use libnvc::Result;
use log::{info, warn};
use nvc_hostfile::HostFile;

use super::programs::Programs;
use crate::ask::ask_installed;
use crate::engine::daemon::{DaemonLine, running};
use crate::engine::docker::{self, Daemon};

/// docker's own runtime.
const OWN: &str = "runc";

/// What is known of a machine's dockerd.
pub(super) struct Docker {
    /// True if systemd runs it, which can reload it.
    is_systemds: bool,
    /// The command that restarts it; None if it does not run.
    restart: Option<String>,
    /// The options of its command line that name a program that goes, and where they are. They count, whatever is in the
    /// file.
    options: Option<(String, &'static str)>,
}

impl Docker {
    /// `gone` are the runtimes that the file loses.
    pub(super) fn new(lines: Vec<DaemonLine>, gone: &[String], programs: &Programs<'_>) -> Self {
        let has_systemd = Path::new("/run/systemd/system").exists();
        let is_systemds = has_systemd && systemctl(&["is-active", "-q", "docker.service"]);
        let restart = if is_systemds {
            Some("systemctl restart docker".into())
        } else {
            running("dockerd").first().map(|process| {
                let pid = process.file_name().unwrap_or_default().display();
                format!("kill {pid}, then start dockerd as before")
            })
        };
        let options = lines.into_iter().find_map(|line| {
            let added = line.values("add-runtime", None).into_iter();
            let added = added.filter_map(|value| value.split_once('='));
            let added: Vec<_> = added.filter(|(_, path)| programs.include(path)).collect();
            let is_gone = |name: &&str| {
                gone.iter().any(|other| other == name)
                    || added.iter().any(|(other, _)| other == name)
            };
            let mut defaults = line.values("default-runtime", None).into_iter();
            let options = match (defaults.any(|name| is_gone(&name)), added.is_empty()) {
                (true, true) => "--default-runtime",
                (true, false) => "--default-runtime and --add-runtime",
                (false, false) => "--add-runtime",
                (false, true) => return None,
            };
            Some((line.origin, options))
        });
        Self {
            is_systemds,
            restart,
            options,
        }
    }

    /// Returns true if the running dockerd's default runtime is one that goes. Its file may name it no longer.
    pub(super) fn has_default(&self, programs: &Programs<'_>) -> bool {
        let daemon = self.restart.as_ref().and_then(|_| daemon());
        daemon.is_some_and(|daemon| {
            let program = daemon.runtime(&daemon.default_runtime);
            program.is_some_and(|program| programs.include(program))
        })
    }

    /// Makes a dockerd of systemd take a changed file; the flag says whether its default runtime goes. Returns what the
    /// administrator must do.
    pub(super) fn apply(&self, changed: Option<(&Path, bool)>, is_dry: bool) -> Option<String> {
        let is_applied = changed.is_none_or(|(path, had_default)| {
            self.is_systemds
                && (is_dry
                    || take(path, had_default).unwrap_or_else(|error| {
                        warn!("{}", error.message());
                        false
                    }))
        });
        let restart = self.restart.as_deref();
        if let Some((origin, options)) = &self.options {
            let restart = restart.unwrap_or("systemctl restart docker");
            return Some(format!(
                "{origin}: remove {options} from dockerd's command line, then: {restart}"
            ));
        }
        let restart = restart.filter(|_| !is_applied)?;
        Some(format!("Restart docker to apply that: {restart}"))
    }
}

/// Returns true if docker says that it has taken the file.
fn take(path: &Path, had_default: bool) -> Result<bool> {
    if !had_default {
        return Ok(reload(&|_| true));
    }
    let file = HostFile::open(path)?;
    let text = file.text().map(str::to_owned);
    file.replace(&docker::with_default(path, text.as_deref(), OWN)?, 0o644)?;
    let is_own = |daemon: &Daemon| daemon.default_runtime == OWN;
    let is_taken = reload(&is_own);
    let file = HostFile::open(path)?;
    match text {
        Some(text) => file.replace(&text, 0o644)?,
        None => file.remove()?,
    }
    let is_taken = is_taken && reload(&is_own);
    if is_taken {
        info!("dockerd's default runtime is {OWN}");
    }
    Ok(is_taken)
}

/// Asks the running dockerd.
fn daemon() -> Option<Daemon> {
    Daemon::parse(&ask_installed("docker", &docker::INFO).ok()?).ok()?
}

fn systemctl(arguments: &[&str]) -> bool {
    ask_installed("systemctl", arguments).is_ok()
}

/// Reloads docker; returns true if it then says what it should.
fn reload(is_right: &dyn Fn(&Daemon) -> bool) -> bool {
    systemctl(&["reload", "docker.service"])
        && (0..10).any(|_| {
            let is_right = daemon().as_ref().is_some_and(is_right);
            if !is_right {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            is_right
        })
}
