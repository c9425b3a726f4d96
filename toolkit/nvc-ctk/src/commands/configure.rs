//! Registers the NVIDIA runtime with a container engine, or undoes that.

use std::path::{Path, PathBuf};
use std::process::Command;

use libnvc::{Error, ErrorKind, Result};
use log::info;
use nix::errno::Errno;
use nvc_hostfile::HostFile;

use super::invalid;
use crate::engine::{Change, Runtime, containerd, crio, docker, oci_hook, record, undo};
use crate::line::CommandLine;
use crate::logging::print;

/// The engines that can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Docker,
    Containerd,
    Crio,
}

/// A validated request.
struct Registration {
    engine: Engine,
    config: PathBuf,
    drop_in: Option<PathBuf>,
    runtime: Runtime,
    drops_default: bool,
}

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
    let dumped = dumped(engine, line)?;
    let edits = if line.flag("remove") {
        removal(&wanted)?
    } else {
        addition(&wanted, dumped.as_deref())?
    };
    if line.flag("dry-run") {
        return show(&edits);
    }
    for Edit {
        file,
        change,
        record,
    } in edits
    {
        change.carry_out(file, record.as_ref())?;
        if change.is_needed() {
            info!("Wrote updated config to {}", change.path.display());
        }
    }
    info!(
        "It is recommended that {} daemon be restarted.",
        line.text("runtime")
    );
    Ok(())
}

/// A change of a file that was opened for it.
struct Edit {
    file: HostFile,
    change: Change,
    record: Option<record::Record>,
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

impl Engine {
    fn config(self) -> &'static str {
        match self {
            Self::Docker => docker::CONFIG,
            Self::Containerd => containerd::CONFIG,
            Self::Crio => crio::CONFIG,
        }
    }

    fn drop_in(self) -> Option<&'static str> {
        match self {
            Self::Docker => None,
            Self::Containerd => Some(containerd::DROP_IN),
            Self::Crio => Some(crio::DROP_IN),
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Docker => "nvidia-container-runtime",
            Self::Containerd | Self::Crio => "/usr/bin/nvidia-container-runtime",
        }
    }
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
    let path = non_empty(line, "nvidia-runtime-path").unwrap_or(engine.program());
    if engine != Engine::Docker && !path.starts_with('/') {
        return Err(invalid(format!(
            "the NVIDIA runtime path \"{path}\" is not an absolute path"
        )));
    }
    Ok(Runtime {
        name: name.into(),
        path: path.into(),
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

fn addition(wanted: &Registration, dumped: Option<&str>) -> Result<Vec<Edit>> {
    let config = HostFile::open(&wanted.config)?;
    let drop_in = wanted.drop_in.as_deref().map(HostFile::open).transpose()?;
    let texts = Texts {
        text: config.text(),
        drop_in_text: drop_in.as_ref().and_then(HostFile::text),
        dumped,
    };
    let changes = changes(wanted, texts, &wanted.runtime)?;
    let mut files: Vec<HostFile> = [config].into_iter().chain(drop_in).collect();
    changes
        .into_iter()
        .filter_map(|change| {
            let place = files.iter().position(|file| file.path() == change.path)?;
            Some((files.swap_remove(place), change))
        })
        .map(|(file, change)| {
            let earlier = record::load(Path::new(record::DIRECTORY), &file)?;
            let restore =
                |text: &str, before: Option<&str>| restore(wanted, &change.path, text, before);
            let is_ours =
                |text: &str, bare: Option<&str>| is_ours(wanted, &change.path, text, bare);
            let record = undo::record_for(&change, earlier.as_ref(), &restore, &is_ours)?;
            Ok(Edit {
                file,
                change,
                record,
            })
        })
        .collect()
}

/// The input of changes.
#[derive(Clone, Copy)]
struct Texts<'a> {
    text: Option<&'a str>,
    drop_in_text: Option<&'a str>,
    dumped: Option<&'a str>,
}

fn changes(wanted: &Registration, texts: Texts<'_>, runtime: &Runtime) -> Result<Vec<Change>> {
    let Texts {
        text,
        drop_in_text,
        dumped,
    } = texts;
    let (path, drop_in) = (wanted.config.as_path(), wanted.drop_in.as_deref());
    match wanted.engine {
        Engine::Docker => Ok(vec![docker::add(path, text, runtime)?]),
        Engine::Containerd => {
            let files = containerd::Files {
                path,
                text,
                drop_in,
                drop_in_text,
                dumped,
                drops_default: wanted.drops_default,
            };
            containerd::add(files, runtime)
        }
        Engine::Crio => {
            let files = crio::Files {
                path,
                text,
                drop_in,
                drop_in_text,
                dumped,
            };
            Ok(vec![crio::add(files, runtime)?])
        }
    }
}

/// Returns true if a file's text is this program's output for another text.
fn is_ours(wanted: &Registration, path: &Path, text: &str, bare: Option<&str>) -> bool {
    if wanted.drop_in.as_deref() == Some(path) {
        return true; // we write it as a whole
    }
    let texts = Texts {
        text: bare,
        drop_in_text: None,
        dumped: None,
    };
    [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .any(|(set_as_default, enable_cdi)| {
            let runtime = Runtime {
                set_as_default,
                enable_cdi,
                ..wanted.runtime.clone()
            };
            let made = changes(wanted, texts, &runtime).unwrap_or_default();
            made.iter()
                .any(|change| change.path == path && change.after.as_deref() == Some(text))
        })
}

fn removal(wanted: &Registration) -> Result<Vec<Edit>> {
    let files = wanted.drop_in.iter().chain([&wanted.config]);
    files
        .map(|path| {
            let file = HostFile::open(path)?;
            let record = record::load(Path::new(record::DIRECTORY), &file)?;
            let restore = |text: &str, before: Option<&str>| restore(wanted, path, text, before);
            let change = undo::undo(path, file.text(), record.as_ref(), &restore)?;
            Ok(Edit {
                file,
                change,
                record: None,
            })
        })
        .collect()
}

/// Removes the runtime from one of the engine's files.
fn restore(
    wanted: &Registration,
    path: &Path,
    text: &str,
    before: Option<&str>,
) -> Result<Option<String>> {
    let name = &wanted.runtime.name;
    // A drop-in that registers the runtime is ours as a whole.
    if wanted.drop_in.as_deref() == Some(path) {
        let is_ours = match wanted.engine {
            Engine::Crio => crio::has(path, text, name)?,
            _ => containerd::has(path, text, name)?,
        };
        return Ok(if is_ours { before } else { Some(text) }.map(Into::into));
    }
    match wanted.engine {
        Engine::Docker => docker::restore(path, text, before, name),
        Engine::Containerd => {
            containerd::restore(path, text, before, name, wanted.drop_in.as_deref())
        }
        Engine::Crio => crio::restore(path, text, before, name),
    }
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
    let program = line.text("nvidia-runtime-hook-path");
    if !program.starts_with('/') {
        return Err(invalid(format!(
            "the NVIDIA runtime hook path \"{program}\" is not an absolute path"
        )));
    }
    let text = oci_hook::text(program);
    let path = line.text("oci-hook-path");
    if line.flag("remove") {
        let file = HostFile::open(Path::new(path))?;
        if file.text() != Some(&text) {
            let text = format!("{path} is not the file that these options write");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        return file.remove();
    }
    if path.is_empty() || line.flag("dry-run") {
        return print(&text);
    }
    nvc_hostfile::write(Path::new(path), &text)?;
    info!("Wrote updated config to {path}");
    Ok(())
}
