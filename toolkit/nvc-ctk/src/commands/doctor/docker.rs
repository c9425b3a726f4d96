//! Checks docker: its configuration file, and what the running daemon knows of it.
//!
//! dockerd reads its file, and looks for the hook, when it starts. So a file that is right says little about containers;
//! the daemon itself is asked.

use std::path::Path;

use nix::unistd::geteuid;
use nvc_cdi::Registry;

use super::engines::{RUNTIME, configuration, is_program, name_option, registration};
use super::{Finding, Level, daemon, specifications};
use crate::ask::{ask, find};
use crate::commands::repair::{command, step};
use crate::engine::docker::{Daemon, INFO, Settings};
use crate::engine::edits::Engine;

const HOOK: &str = "nvidia-container-runtime-hook";
const UNKNOWN_RUNTIME: &str = "docker run --runtime=nvidia: unknown or invalid runtime name";
const NO_DRIVER: &str =
    "docker run --gpus: could not select device driver \"\" with capabilities: [[gpu]]";
const NO_CDI: &str = "docker run --device nvidia.com/gpu=all: could not select device driver \"cdi\", or no such file";

const RESTART: &str = "systemctl restart docker";

/// The first version with CDI, which it enables by a setting.
const FIRST_WITH_CDI: u32 = 25;

pub(super) fn all(registry: &Registry) -> Vec<Finding> {
    let files = Engine::Docker.files_of(&Engine::Docker.command_lines());
    let (settings, mut findings) = settings(&files.config);
    let Some(settings) = settings else {
        return findings;
    };
    let file = File {
        path: files.config.display().to_string(),
        origin: files.origin,
        settings,
    };
    if find("dockerd").is_none() {
        return findings;
    }
    let file_is_right = findings.iter().all(|finding| !finding.level.is_wrong());
    findings.extend(hook());
    // Without the client, dockerd cannot be asked.
    if let Some(elsewhere) = elsewhere() {
        findings.push(elsewhere);
    } else if file_is_right && find("docker").is_some() {
        let answer = ask("docker", &INFO).map_err(|error| error.message());
        match answer.and_then(|answer| Daemon::parse(&answer)) {
            Ok(Some(engine)) => {
                findings.extend(compare(&file, &engine));
                let (setting, read) = ("cdi-spec-dirs in daemon.json", engine.directories());
                findings.extend(specifications::unread(registry, "docker", setting, read));
            }
            Ok(None) => {}
            Err(error) => findings.push(silent(&error)),
        }
    }
    findings
}

/// docker's configuration file.
#[derive(Debug)]
struct File {
    path: String,
    /// The command line that names it, if it is not the usual one.
    origin: Option<String>,
    settings: Settings,
}

/// Describes a variable that sends docker's client to another machine, or to nobody.
fn elsewhere() -> Option<Finding> {
    let host = std::env::var("DOCKER_HOST").ok()?;
    (!host.is_empty() && !host.starts_with("unix://")).then(|| {
        Finding::advice(
            format!("DOCKER_HOST is {host}: docker's client does not ask this machine's dockerd"),
            "docker run --gpus gives the other machine's GPUs, or fails",
            step("unset DOCKER_HOST").and("nvidia-ctk doctor"),
        )
    })
}

/// Describes a docker that does not answer.
fn silent(error: &str) -> Finding {
    let what = format!("docker does not say what it knows: {error}");
    let symptom = "nvidia-ctk doctor checks docker's file only";
    let more = "journalctl -u docker says more";
    if !geteuid().is_root() {
        return Finding::advice(what, symptom, step("sudo nvidia-ctk doctor, as root"));
    }
    if error.contains("Cannot connect") {
        return Finding::advice(what, symptom, command("systemctl start docker")).note(more);
    }
    Finding::advice(what, symptom, step(more))
}

/// Reads the configuration file; None if it cannot be parsed. The findings are those of the file alone.
fn settings(path: &Path) -> (Option<Settings>, Vec<Finding>) {
    let symptom = "dockerd does not start, or containers with --runtime=nvidia fail";
    let text = match configuration(path, symptom) {
        Ok(None) => return (Some(Settings::default()), Vec::new()),
        Ok(Some(text)) => text,
        Err(finding) => return (None, vec![finding]),
    };
    match Settings::parse(&text) {
        Ok(settings) => {
            let missing = registered(&settings).filter(|(_, program)| !is_program(program));
            let missing = missing.map(|(name, program)| {
                let path = path.display();
                let what = format!("{path}: runtime {name} is {program}, which is missing");
                Finding::wrong(what, symptom, registration("docker", &name_option(name)))
            });
            let findings = missing.chain(default_runtime(path, &settings)).collect();
            (Some(settings), findings)
        }
        Err(error) => {
            let what = format!("{}: {error}", path.display());
            let repair = format!("correct {}", path.display());
            (None, vec![Finding::wrong(what, symptom, step(repair))])
        }
    }
}

/// Returns the NVIDIA runtimes of docker's configuration with their programs.
fn registered(settings: &Settings) -> impl Iterator<Item = (&str, &str)> {
    let runtimes = settings.runtimes();
    runtimes.filter(|(name, _)| name.starts_with("nvidia"))
}

/// Checks that a default runtime of NVIDIA's is registered with docker.
fn default_runtime(config: &Path, settings: &Settings) -> Option<Finding> {
    let default = settings.default_runtime.as_deref()?;
    let is_known = settings.runtimes().any(|(name, _)| name == default);
    (default.starts_with("nvidia") && !is_known).then(|| {
        let config = config.display();
        let what = format!("{config}: the default runtime {default} is not registered");
        let repair = registration("docker", &name_option(default));
        Finding::wrong(what, "dockerd does not start", repair)
    })
}

/// Checks that dockerd found the hook when it started, which is the only time it looks for it.
fn hook() -> Option<Finding> {
    if find(HOOK).is_none() {
        // Without our runtime the whole toolkit is missing, which is another finding.
        return find(RUNTIME).map(|_| {
            Finding::advice(
                format!("{HOOK} is missing, without which docker has no option --gpus"),
                NO_DRIVER,
                step("install nvidia-container-toolkit").and(RESTART),
            )
        });
    }
    daemon::lacks_hook().then(|| {
        Finding::wrong(
            format!("dockerd was started before {HOOK} was installed, and does not know it"),
            NO_DRIVER,
            command(RESTART),
        )
    })
}

/// Compares docker's file with what the running dockerd knows.
fn compare(file: &File, engine: &Daemon) -> Vec<Finding> {
    let mut findings = Vec::new();
    let File { path, settings, .. } = file;
    let is_known = |(name, program): (&str, &str)| engine.runtime(name) == Some(program);
    let unknown = registered(settings).find(|runtime| !is_known(*runtime));
    let default = settings.default_runtime.as_ref();
    let default =
        default.filter(|name| name.starts_with("nvidia") && **name != engine.default_runtime);
    let reload = || command("systemctl reload docker");
    if let Some((name, program)) = unknown {
        let what = match engine.runtime(name) {
            None => format!("dockerd does not know the runtime {name} that {path} registers"),
            Some(other) => {
                format!("dockerd's runtime {name} is {other}, and that of {path} is {program}")
            }
        };
        let what = format!("{what}: the file was changed after it was read");
        findings.push(Finding::wrong(what, UNKNOWN_RUNTIME, reload()));
    } else if let Some(default) = default {
        let what = format!(
            "dockerd's default runtime is {}, and that of {path} is {default}: the file was changed after it was read",
            engine.default_runtime
        );
        let symptom = "containers without --runtime get no GPU";
        findings.push(Finding::wrong(what, symptom, reload()));
    }
    let is_registered = registered(settings).next().is_some() || engine.has_nvidia();
    let cdi = cdi(file, engine);
    if !is_registered && find(RUNTIME).is_some() {
        let origin = file.origin.iter();
        let reads: String = origin
            .map(|origin| format!(", which reads {path} ({origin}),"))
            .collect();
        let what = format!("dockerd{reads} does not know the runtime nvidia");
        // One command does both.
        let repair = match &cdi {
            Some(off) if off.level == Level::Advice => off.repair.clone(),
            _ => registration("docker", ""),
        };
        findings.push(Finding::advice(what, UNKNOWN_RUNTIME, repair));
    }
    findings.extend(cdi);
    findings
}

/// Checks that a dockerd that can resolve CDI names does so.
fn cdi(file: &File, engine: &Daemon) -> Option<Finding> {
    if !engine.directories().is_empty() || *engine.version()?.first()? < FIRST_WITH_CDI {
        return None;
    }
    let path = &file.path;
    Some(if file.settings.enables_cdi() {
        let what = format!(
            "dockerd's CDI is off, and {path} enables it: the file was changed after it was read"
        );
        Finding::wrong(what, NO_CDI, command(RESTART))
    } else {
        let repair = registration("docker", " --cdi.enabled");
        Finding::advice("docker's CDI is off", NO_CDI, repair)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn first(settings: &Value, info: &Value) -> Option<String> {
        let engine = Daemon::parse(&info.to_string()).unwrap().unwrap();
        let file = File {
            path: "/etc/docker/daemon.json".into(),
            origin: None,
            settings: Settings::parse(&settings.to_string()).unwrap(),
        };
        compare(&file, &engine)
            .first()
            .map(|finding| finding.what.clone())
    }

    #[test]
    fn the_daemon_is_compared_with_its_file() {
        let file = json!({ "runtimes": { "nvidia": { "path": "nvidia-container-runtime" } } });
        let info = |runtimes: Value, cdi: Value| json!({ "ServerVersion": "26.1.5+dfsg1", "DefaultRuntime": "runc", "Runtimes": runtimes, "CDISpecDirs": cdi });
        let known =
            json!({ "nvidia": { "path": "nvidia-container-runtime" }, "runc": { "path": "runc" } });
        let on = json!(["/etc/cdi", "/var/run/cdi"]);
        assert_eq!(first(&file, &info(known.clone(), on.clone())), None);
        let found = first(&file, &info(json!({}), on.clone())).unwrap();
        assert!(
            found.contains("does not know the runtime nvidia"),
            "{found}"
        );
        let other = json!({ "nvidia": { "path": "/old/runtime" } });
        let found = first(&file, &info(other, on.clone())).unwrap();
        assert!(found.contains("is /old/runtime, and that of"), "{found}");
        let mut default = file.clone();
        default["default-runtime"] = json!("nvidia");
        let found = first(&default, &info(known.clone(), on)).unwrap();
        assert!(found.contains("default runtime is runc"), "{found}");
        for off in [json!([]), Value::Null] {
            let found = first(&file, &info(known.clone(), off.clone())).unwrap();
            assert_eq!(found, "docker's CDI is off");
            let mut enabled = file.clone();
            enabled["features"] = json!({ "cdi": true });
            let found = first(&enabled, &info(known.clone(), off)).unwrap();
            assert!(found.contains("enables it"), "{found}");
        }
        let mut old = info(known, Value::Null);
        old["ServerVersion"] = json!("20.10.24+dfsg1");
        assert_eq!(first(&file, &old), None);
    }

    #[test]
    fn other_answers_say_nothing() {
        let parse = |value: Value| Daemon::parse(&value.to_string());
        assert!(
            parse(json!({ "host": {}, "version": {} }))
                .unwrap()
                .is_none()
        );
        let error = parse(json!({ "ServerErrors": ["Cannot connect"] })).unwrap_err();
        assert_eq!(error, "Cannot connect");
    }
}
