//! Registers the NVIDIA runtime with a container engine, or undoes that.

use std::path::{Path, PathBuf};
use std::process::Command;

use libnvc::{Error, ErrorKind, Result};
use log::info;
use nix::errno::Errno;
use nix::unistd::geteuid;
use nvc_hostfile::HostFile;

use super::invalid;
use crate::engine::edits::{Edit, Engine, Registration, addition, removal};
use crate::engine::notes::{self, Note};
use crate::engine::{Runtime, oci_hook, program};
use crate::line::CommandLine;
use crate::logging::print;

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
        other => return Err(invalid(format!("unrecognized runtime '{other}'"))),
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
    let edits = if removes {
        removal(&wanted)?
    } else {
        program::warn_of_missing(&wanted.runtime.path);
        addition(&wanted, dumped.as_deref())?
    };
    if line.flag("dry-run") {
        return show(&edits);
    }
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

fn wanted(engine: Engine, line: &CommandLine) -> Result<Registration> {
    let config = non_empty(line, "config").unwrap_or(engine.config());
    // The main file cannot import itself.
    let drop_in = drop_in(engine, line)?.filter(|drop_in| *drop_in != config);
    let runtime = runtime(engine, line)?;
    if runtime.enable_cdi && engine == Engine::Crio {
        log::warn!("--cdi.enabled is ignored: CRI-O resolves CDI names anyway");
    }
    Ok(Registration {
        engine,
        config: config.into(),
        drop_in: drop_in.map(PathBuf::from),
        runtime,
        drops_default: engine == Engine::Containerd && is_containerd_1(line),
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

/// Returns true if the installed containerd has version 1; false if there is none.
fn is_containerd_1(line: &CommandLine) -> bool {
    let program = non_empty(line, "executable-path").unwrap_or("containerd");
    // containerd github.com/containerd/containerd 1.7.24 1.7.24
    ask(program, &["--version"]).is_ok_and(|text| {
        let mut words = text.split_whitespace().skip(2);
        words.any(|word| word.trim_start_matches('v').starts_with("1."))
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

fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    let failed = |text: String| Error::new(ErrorKind::System, text);
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Error::file("execution failed", program, errno)
        })?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.lines().next().unwrap_or_default();
        return Err(failed(format!(
            "{program} {}: {}: {reason}",
            arguments.join(" "),
            output.status
        )));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(format!("{program}: {error}")))
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
