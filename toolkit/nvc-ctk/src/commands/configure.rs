//! Registers the NVIDIA runtime with a container engine, or undoes that.

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nvc_hostfile::HostFile;
use nvc_program::hints::did_you_mean;

use super::invalid;
use crate::ask::{ask, ask_installed};
use crate::engine::daemon::DaemonLine;
use crate::engine::docker::Settings;
use crate::engine::edits::{Edit, Engine, Registration, addition, removal};
use crate::engine::{Runtime, containerd, oci_hook, program, read, templates};
use crate::line::CommandLine;
use crate::logging::print;

/// The first minor version of containerd 1 that resolves CDI names.
const FIRST_WITH_CDI: u32 = 7;

pub(super) fn run(line: &CommandLine) -> Result<()> {
    match line.text("config-mode") {
        "oci-hook" | "hook" => return oci_hook(line),
        "" | "config-file" | "config" => {}
        other => warn!("unknown --config-mode {other}, using config-file"),
    }
    let engine = engine(line.text("runtime"))?;
    let daemon = engine.command_lines();
    let wanted = wanted(engine, line, &daemon)?;
    let (removes, is_dry) = (line.flag("remove"), line.flag("dry-run"));
    let edits = if removes {
        removed(&wanted, &daemon)?
    } else {
        if let Some(lines) = of_template(&wanted, is_dry)? {
            return print(&lines);
        }
        given_twice(&wanted, &daemon)?;
        program::warn_of_missing(&wanted.runtime.path);
        addition(&wanted, dumped(engine, line)?.as_deref())?
    };
    if is_dry {
        return show(&edits);
    }
    settings_that_stay(&wanted, removes, &edits);
    let mut is_changed = false;
    for edit in edits {
        if let Some(path) = edit.carry_out()? {
            info!("Wrote updated config to {}", path.display());
            is_changed = true;
        }
    }
    if !is_changed {
        info!("Nothing to change: {} need not be restarted", engine.name());
    } else if line.flag("restart") {
        ask_installed("systemctl", &["restart", engine.name()])?;
        info!("Restarted {}", engine.name());
    } else {
        info!(
            "It is recommended that {} daemon be restarted.",
            engine.name()
        );
    }
    Ok(())
}

fn engine(name: &str) -> Result<Engine> {
    let mut engines = Engine::ALL.into_iter();
    engines.find(|engine| engine.name() == name).ok_or_else(|| {
        invalid(format!("unrecognized runtime '{name}'")).hint(match name {
            "podman" => "Podman needs no configuration: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml".into(),
            _ => did_you_mean(name, &Engine::ALL.map(Engine::name)),
        })
    })
}

/// Returns the edits that remove the runtime, and says what else goes or stays. In files other than the engine's usual
/// ones an entry is ours only if its program is the toolkit's.
fn removed(wanted: &Registration, daemon: &[DaemonLine]) -> Result<Vec<Edit>> {
    let (config, drop_in) = (&wanted.config, wanted.drop_in.as_deref());
    let name = &wanted.runtime.name;
    let is_removed = |path: &Path, found: &str, program: &str| {
        found == name && (path == config || Some(path) == drop_in || program::is_toolkit(program))
    };
    let removal = removal(wanted.engine, config, drop_in, &is_removed)?;
    if removal.had_default {
        info!(
            "{name} was the default runtime: {} uses its own again, runc, and which one it had before is not known",
            wanted.engine.name()
        );
    }
    let is_default = |line: &&DaemonLine| line.values("default-runtime", None).contains(&&**name);
    if let Some(line) = daemon.iter().find(is_default) {
        warn!(
            "{}: --default-runtime={name} on the command line of {} stays; remove it there, or it does not start",
            line.origin,
            wanted.engine.daemon()
        );
    }
    Ok(removal.edits)
}

/// Returns what to write into a template, if the file is one, for a dry run; otherwise that is an error.
fn of_template(wanted: &Registration, is_dry: bool) -> Result<Option<String>> {
    if wanted.engine == Engine::Docker {
        return Ok(None);
    }
    let text = read(&wanted.config)?.unwrap_or_default();
    let Some(template) = templates::of(&wanted.config, &text) else {
        return Ok(None);
    };
    if !is_dry {
        return Err(templates::refused(&wanted.config, &template));
    }
    templates::lines(&text, &wanted.runtime).map(Some)
}

/// Refuses what dockerd refuses to have both on its command line and in its file, and names what it takes from the file.
fn given_twice(wanted: &Registration, daemon: &[DaemonLine]) -> Result<()> {
    if wanted.engine != Engine::Docker {
        return Ok(());
    }
    let first = |option: &str| {
        let value = |line: &DaemonLine| Some(line.values(option, None).first()?.to_string());
        let mut lines = daemon.iter();
        lines.find_map(|line| Some((value(line)?, &line.origin)))
    };
    let config = wanted.config.display();
    if let (true, Some((_, origin))) = (wanted.runtime.set_as_default, first("default-runtime")) {
        let error = invalid(format!(
            "{origin}: --default-runtime is on dockerd's command line: with default-runtime in {config} too, dockerd does \
             not start"
        ));
        return Err(
            error.hint("remove it from the command line, or leave out --nvidia-set-as-default")
        );
    }
    if let Some((value, origin)) = first("add-runtime") {
        info!(
            "{origin}: dockerd has --add-runtime={value} on its command line; of two runtimes of one name that of {config} counts"
        );
    }
    Ok(())
}

/// Warns about settings of an engine's file that stay, and that the administrator may not expect.
fn settings_that_stay(wanted: &Registration, removes: bool, edits: &[Edit]) {
    for edit in edits {
        let Some(text) = edit.after.as_deref() else {
            continue;
        };
        let path = edit.path().display();
        let enables_cdi = || Settings::parse(text).is_ok_and(|settings| settings.enables_cdi());
        match wanted.engine {
            Engine::Docker if removes && edit.is_needed() && enables_cdi() => {
                warn!(
                    "{path}: features.cdi stays; remove it by hand if no other CDI devices are used"
                );
            }
            Engine::Containerd if !removes && containerd::disables_cri(edit.path(), text) => {
                warn!(
                    "{path}: disabled_plugins disables the CRI plugin, so pods cannot use the runtime {}; remove cri from it",
                    wanted.runtime.name
                );
            }
            _ => {}
        }
    }
}

fn wanted(engine: Engine, line: &CommandLine, daemon: &[DaemonLine]) -> Result<Registration> {
    let read = engine.files_of(daemon);
    let config = match non_empty(line, "config") {
        Some(config) => PathBuf::from(config),
        None => {
            if let Some(origin) = &read.origin {
                info!(
                    "{origin}: {} reads {}",
                    engine.name(),
                    read.config.display()
                );
            }
            read.config
        }
    };
    // The main file cannot import itself.
    let drop_in = drop_in(engine, line, &config, read.drop_in)?;
    let drop_in = drop_in.filter(|drop_in| *drop_in != config);
    let runtime = runtime(engine, line)?;
    let program = non_empty(line, "executable-path").unwrap_or("containerd");
    let version = (engine == Engine::Containerd).then(|| containerd::version(program));
    let minor = match version.flatten().as_deref() {
        Some([1, minor, ..]) => Some(*minor),
        _ => None,
    };
    let wants_cdi = runtime.enable_cdi;
    match minor {
        _ if wants_cdi && engine == Engine::Crio => {
            warn!("--cdi.enabled is ignored: CRI-O resolves CDI names anyway");
        }
        Some(minor) if wants_cdi && minor < FIRST_WITH_CDI => warn!(
            "--cdi.enabled is ignored by containerd 1.{minor}: it resolves CDI names from 1.{FIRST_WITH_CDI} on; the runtime \
             nvidia resolves those of annotations and NVIDIA_VISIBLE_DEVICES"
        ),
        _ => {}
    }
    Ok(Registration {
        engine,
        config,
        drop_in,
        runtime,
        drops_default: minor.is_some(),
    })
}

fn non_empty<'a>(line: &'a CommandLine, option: &str) -> Option<&'a str> {
    line.given(option).filter(|value| !value.is_empty())
}

/// Returns the drop-in file to write; None if the main file is changed instead.
fn drop_in(
    engine: Engine,
    line: &CommandLine,
    config: &Path,
    usual: Option<PathBuf>,
) -> Result<Option<PathBuf>> {
    match line.given("drop-in-config") {
        // A second containerd's file imports one of its own.
        None if engine == Engine::Containerd => Ok(Some(containerd::drop_in_beside(config))),
        None => Ok(usual),
        Some("") => Ok(None),
        Some(_) if engine == Engine::Docker => Err(invalid(
            "docker has no drop-in files: --drop-in-config cannot be given",
        )),
        Some(path) if !path.starts_with('/') => Err(invalid(format!(
            "the drop-in-config path \"{path}\" is not an absolute path"
        ))),
        Some(path) => Ok(Some(path.into())),
    }
}

fn runtime(engine: Engine, line: &CommandLine) -> Result<Runtime> {
    let name = line.text("nvidia-runtime-name");
    if name.is_empty() {
        return Err(invalid("--nvidia-runtime-name is empty"));
    }
    let path = non_empty(line, "nvidia-runtime-path").map_or_else(
        || match engine {
            Engine::Docker => program::for_docker(&program::own(), program::RUNTIME),
            _ => program::beside(&program::own(), program::RUNTIME),
        },
        Into::into,
    );
    if engine != Engine::Docker && !path.starts_with('/') {
        return Err(invalid(format!(
            "the NVIDIA runtime path \"{path}\" is not an absolute path"
        )));
    }
    Ok(Runtime {
        name: name.into(),
        path,
        set_as_default: line.flag("nvidia-set-as-default"),
        enable_cdi: line.flag("cdi.enabled"),
    })
}

/// Returns the engine's own dump of its configuration, if requested.
fn dumped(engine: Engine, line: &CommandLine) -> Result<Option<String>> {
    let source = line.text("config-source");
    let named = non_empty(line, "executable-path");
    match (source, engine) {
        ("file", _) => return Ok(None),
        ("command", Engine::Containerd) => ask(named.unwrap_or("containerd"), &["config", "dump"]),
        ("command", Engine::Crio) => ask(named.unwrap_or("crio"), &["status", "config"])
            // Of versions before 1.30.
            .or_else(|_| ask(named.unwrap_or("crio-status"), &["config"])),
        // As upstream: scripts pass one set of options for each engine.
        ("command", Engine::Docker) => {
            warn!(
                "--config-source=command is ignored: docker has no such source, its file is read"
            );
            return Ok(None);
        }
        (other, _) => Err(invalid(format!("unrecognized Config Source: {other}"))),
    }
    .map(Some)
}

fn show(edits: &[Edit]) -> Result<()> {
    let mut text = String::new();
    for edit in edits {
        if edits.len() > 1 {
            text += &format!("# {}\n", edit.path().display());
        }
        text += edit.after.as_deref().unwrap_or_default();
    }
    print(&text)
}

fn oci_hook(line: &CommandLine) -> Result<()> {
    let program = match line.given("nvidia-runtime-hook-path") {
        Some(program) => program.into(),
        None => program::beside(&program::own(), program::HOOK),
    };
    if !program.starts_with('/') {
        return Err(invalid(format!(
            "the NVIDIA runtime hook path \"{program}\" is not an absolute path"
        )));
    }
    let text = oci_hook::text(&program);
    let path = line.text("oci-hook-path");
    if line.flag("remove") {
        let file = HostFile::open(Path::new(path))?;
        if file.text() != Some(&text) {
            let text = format!("{path} is not the file that these options write");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        return file.remove();
    }
    program::warn_of_missing(&program);
    if path.is_empty() || line.flag("dry-run") {
        return print(&text);
    }
    nvc_hostfile::write(Path::new(path), &text)?;
    info!("Wrote updated config to {path}");
    Ok(())
}
