//! Registers the NVIDIA runtime with a container engine, or undoes that.

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use log::info;
use nix::unistd::geteuid;
use nvc_hostfile::HostFile;
use nvc_program::hints::did_you_mean;

use super::invalid;
use crate::ask::ask;
use crate::engine::edits::{Edit, Engine, Registration, addition, removal};
use crate::engine::notes::{self, Note};
use crate::engine::{Runtime, containerd, docker, oci_hook, program};
use crate::line::CommandLine;
use crate::logging::print;

/// The first minor version of containerd 1 that resolves CDI names.
const FIRST_WITH_CDI: u32 = 7;

pub(super) fn run(line: &CommandLine) -> Result<()> {
    match line.text("config-mode") {
        "oci-hook" | "hook" => return oci_hook(line),
        "" | "config-file" | "config" => {}
        other => log::warn!("unknown --config-mode {other}, using config-file"),
    }
    let engine = match line.text("runtime") {
        "docker" => Engine::Docker,
        "containerd" => Engine::Containerd,
        "crio" => Engine::Crio,
        "podman" => {
            let error = invalid("unrecognized runtime 'podman'");
            return Err(error.hint("Podman needs no configuration: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"));
        }
        other => {
            let hint = did_you_mean(other, &["docker", "containerd", "crio"]);
            return Err(invalid(format!("unrecognized runtime '{other}'")).hint(hint));
        }
    };
    let wanted = wanted(engine, line)?;
    let package = non_empty(line, "for-package");
    let removes = line.flag("remove");
    if let Some(package) = package
        && !concerns(&wanted, package, removes)?
    {
        return Ok(());
    }
    let dumped = dumped(engine, line)?;
    let directory = Path::new(notes::DIRECTORY);
    let shares_import = notes::shares_import(directory, &wanted);
    let edits = if removes {
        removal(&wanted, shares_import)?
    } else {
        program::warn_of_missing(&wanted.runtime.path);
        let is_noted =
            shares_import || !matches!(Note::of(&wanted, package).stored(directory), Ok(None));
        addition(&wanted, dumped.as_deref(), is_noted)?
    };
    if line.flag("dry-run") {
        return show(&edits);
    }
    settings_that_stay(&wanted, removes, &edits);
    let note = Note::of(&wanted, package);
    if !removes {
        noted(note.store(Path::new(notes::DIRECTORY)));
    }
    for edit in edits {
        if let Some(path) = edit.carry_out()? {
            info!("Wrote updated config to {}", path.display());
        }
    }
    if removes {
        noted(note.forget(Path::new(notes::DIRECTORY)));
    }
    info!(
        "It is recommended that {} daemon be restarted.",
        line.text("runtime")
    );
    Ok(())
}

/// Returns true if a package's script has something to do: it registers what nobody has, and removes what it registered.
fn concerns(wanted: &Registration, package: &str, removes: bool) -> Result<bool> {
    let stored = Note::of(wanted, None).stored(Path::new(notes::DIRECTORY))?;
    let own = stored.filter(|note| note.package.as_deref() == Some(package));
    let present = wanted.program()?;
    let is_own = own.is_some_and(|note| Some(note.program) == present);
    let name = &wanted.runtime.name;
    if removes && !is_own {
        info!("The runtime {name} stays: {package} did not register it");
    }
    if !removes && !is_own && present.is_some() {
        info!("The runtime {name} is registered already, and stays as it is");
    }
    Ok(is_own || !removes && present.is_none())
}

/// Notes are for removing the package, which only root does. Without one the registration works all the same.
fn noted(result: Result<()>) {
    if let Err(error) = result
        && geteuid().is_root()
    {
        log::warn!(
            "{}: removing the package will name this registration, and not undo it",
            error.message()
        );
    }
}

/// Warns about settings of an engine's file that stay, and that the administrator may not expect.
fn settings_that_stay(wanted: &Registration, removes: bool, edits: &[Edit]) {
    for Edit { change, record, .. } in edits {
        let Some(text) = change.after.as_deref() else {
            continue;
        };
        let path = change.path.display();
        // Other runtimes of ours may need CDI.
        let is_last = record.is_none();
        match wanted.engine {
            // An editor that writes a new file loses the record of what was there before.
            Engine::Docker if removes && is_last && docker::enables_cdi(text) => log::warn!(
                "{path}: features.cdi stays: it was there before, or there is no record of that; remove it by hand if no \
                 other CDI devices are used"
            ),
            Engine::Containerd if !removes && containerd::disables_cri(&change.path, text) => {
                log::warn!(
                    "{path}: disabled_plugins disables the CRI plugin, so pods cannot use the runtime {}; remove cri from it",
                    wanted.runtime.name
                );
            }
            _ => {}
        }
    }
}

fn wanted(engine: Engine, line: &CommandLine) -> Result<Registration> {
    let config = non_empty(line, "config").unwrap_or(engine.config());
    // The main file cannot import itself.
    let drop_in = drop_in(engine, line)?.filter(|drop_in| *drop_in != config);
    let runtime = runtime(engine, line)?;
    if runtime.enable_cdi && engine == Engine::Crio {
        log::warn!("--cdi.enabled is ignored: CRI-O resolves CDI names anyway");
    }
    let version = match engine {
        Engine::Containerd => containerd_version(line),
        Engine::Docker | Engine::Crio => None,
    };
    if let Some((1, minor)) = version
        && runtime.enable_cdi
        && minor < FIRST_WITH_CDI
    {
        log::warn!(
            "--cdi.enabled is ignored by containerd 1.{minor}: it resolves CDI names from 1.{FIRST_WITH_CDI} on; the runtime \
             nvidia resolves those of annotations and NVIDIA_VISIBLE_DEVICES"
        );
    }
    Ok(Registration {
        engine,
        config: config.into(),
        drop_in: drop_in.map(PathBuf::from),
        runtime,
        drops_default: matches!(version, Some((1, _))),
    })
}

fn non_empty<'a>(line: &'a CommandLine, option: &str) -> Option<&'a str> {
    line.given(option).filter(|value| !value.is_empty())
}

/// Returns the drop-in file to write; None if the main file is changed instead.
fn drop_in(engine: Engine, line: &CommandLine) -> Result<Option<&str>> {
    match line.given("drop-in-config") {
        None => Ok(engine.drop_in()),
        Some("") => Ok(None),
        Some(_) if engine == Engine::Docker => Err(invalid(
            "docker has no drop-in files: --drop-in-config cannot be given",
        )),
        Some(path) if !path.starts_with('/') => Err(invalid(format!(
            "the drop-in-config path \"{path}\" is not an absolute path"
        ))),
        Some(path) => Ok(Some(path)),
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

/// Returns the major and minor version of the installed containerd; None if there is none.
fn containerd_version(line: &CommandLine) -> Option<(u32, u32)> {
    let program = non_empty(line, "executable-path").unwrap_or("containerd");
    version_of_containerd(&ask(program, &["--version"]).ok()?)
}

/// Reads a line such as `containerd github.com/containerd/containerd 1.7.24 1.7.24`.
fn version_of_containerd(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().skip(2).find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

/// Returns the engine's own dump of its configuration, if requested.
fn dumped(engine: Engine, line: &CommandLine) -> Result<Option<String>> {
    let commands: &[&[&str]] = match (line.text("config-source"), engine) {
        ("file", _) => return Ok(None),
        ("command", Engine::Containerd) => &[&["containerd", "config", "dump"]],
        ("command", Engine::Crio) => &[&["crio", "status", "config"], &["crio-status", "config"]],
        // As upstream: scripts pass one set of options for each engine.
        ("command", Engine::Docker) => {
            log::warn!(
                "--config-source=command is ignored: docker has no such source, its file is read"
            );
            return Ok(None);
        }
        (other, _) => return Err(invalid(format!("unrecognized Config Source: {other}"))),
    };
    let named = non_empty(line, "executable-path");
    let mut last = None;
    for words in commands {
        let Some((program, arguments)) = words.split_first() else {
            continue;
        };
        match ask(named.unwrap_or(program), arguments) {
            Ok(text) => return Ok(Some(text)),
            Err(error) => last = Some(error),
        }
    }
    last.map_or(Ok(None), Err)
}

fn show(edits: &[Edit]) -> Result<()> {
    let mut text = String::new();
    for Edit { change, .. } in edits {
        if edits.len() > 1 {
            text += &format!("# {}\n", change.path.display());
        }
        text += change.after.as_deref().unwrap_or_default();
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
    let note = Note::of_hook(Path::new(path), &program);
    if line.flag("remove") {
        let file = HostFile::open(Path::new(path))?;
        if file.text() != Some(&text) {
            let text = format!("{path} is not the file that these options write");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        file.remove()?;
        noted(note.forget(Path::new(notes::DIRECTORY)));
        return Ok(());
    }
    program::warn_of_missing(&program);
    if path.is_empty() || line.flag("dry-run") {
        return print(&text);
    }
    nvc_hostfile::write(Path::new(path), &text)?;
    if Path::new(path)
        .symlink_metadata()
        .is_ok_and(|facts| facts.is_file())
    {
        noted(note.store(Path::new(notes::DIRECTORY)));
    }
    info!("Wrote updated config to {path}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::version_of_containerd;

    #[test]
    fn containerd_says_its_version() {
        for (text, version) in [
            (
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1",
                Some((1, 6)),
            ),
            ("containerd containerd.io v2.1.4 75cb2b7193e4", Some((2, 1))),
            ("containerd", None),
        ] {
            assert_eq!(version_of_containerd(text), version, "{text}");
        }
    }
}
