//! Undoes what was registered, before the programs of the toolkit are removed.
//!
//! An engine whose configuration names a missing runtime starts no container with it, and by default none at all. What
//! `runtime configure` registered is undone; what somebody else wrote, and files of users, are only named. It runs in the
//! scripts of packages: whatever fails is reported, and the rest is done.

mod containers;
mod mentions;

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nvc_hostfile::{HostFile, programs};

use crate::ask::ask;
use crate::engine::edits::{Engine, removal};
use crate::engine::notes::{self, Note};
use crate::engine::program;
use crate::line::CommandLine;
use mentions::Programs;

/// The programs that files of engines can name.
const ALL: [&str; 6] = [
    program::RUNTIME,
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    program::HOOK,
    "nvidia-container-toolkit",
    HOOK_OF_SPECIFICATIONS,
];

/// The program that specifications name.
const HOOK_OF_SPECIFICATIONS: &str = "nvidia-cdi-hook";

/// The specification that the units write.
const SPECIFICATION: &str = "/var/run/cdi/nvidia.yaml";

/// Returns 1 if something that was registered could not be undone.
pub(super) fn run(line: &CommandLine) -> Result<u8> {
    let names: Vec<&str> = match line.list("program") {
        [] => ALL.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let own = program::own();
    let directory = own.parent().ok_or_else(|| {
        Error::new(ErrorKind::System, "this program's path is unknown").hint("mount /proc")
    })?;
    let programs = Programs::new(directory, &names);
    let work = Work {
        programs,
        is_dry: line.flag("dry-run"),
    };
    let (mut reported, is_complete) = work.undo_all(Path::new(notes::DIRECTORY));
    let specification = Path::new(SPECIFICATION);
    if names.contains(&HOOK_OF_SPECIFICATIONS) && work.remove_specification(specification) {
        // In a dry run it is still there.
        reported.push(specification.to_owned());
    }
    let mentions = mentions::of(&work.programs).into_iter();
    for mention in mentions.filter(|mention| !reported.contains(&mention.file)) {
        warn!("{mention}");
    }
    for container in containers::running(Path::new("/"), &work.programs, containers::TIMEOUT) {
        warn!("{container}");
    }
    Ok(u8::from(!is_complete))
}

struct Work<'a> {
    programs: Programs<'a>,
    is_dry: bool,
}

impl Work<'_> {
    /// Undoes everything that is noted; returns the files that this was reported of, and whether all of it was done.
    fn undo_all(&self, directory: &Path) -> (Vec<PathBuf>, bool) {
        let (notes, errors) = notes::all(directory);
        let mut is_complete = errors.is_empty();
        for error in errors {
            warn!("{}", error.message());
        }
        let (mut changed, mut reported) = (Vec::new(), Vec::new());
        for note in notes {
            if !self.programs.include(&note.program) {
                continue;
            }
            match self.undo(&note, directory) {
                Ok(true) => {
                    changed.extend(note.engine);
                    reported.extend(note.drop_in.clone());
                    reported.push(note.config.clone());
                }
                Ok(false) => {}
                Err(error) => {
                    let command = mentions::command(note.engine, &note.config, &note.name);
                    let file = note.config.display();
                    warn!(
                        "{file} still names {}: {}; remove that from the file, as its owner: {command}",
                        note.program,
                        error.message()
                    );
                    is_complete = false;
                    reported.push(note.config);
                    continue;
                }
            }
            if !self.is_dry
                && let Err(error) = note.forget(directory)
            {
                warn!("{}", error.message());
            }
        }
        changed.dedup();
        for engine in changed {
            self.reload(engine);
        }
        (reported, is_complete)
    }

    /// Undoes a registration; returns false if it is there no longer, or was replaced by another.
    fn undo(&self, note: &Note, directory: &Path) -> Result<bool> {
        let Some(registration) = note.registration() else {
            return self.undo_hook(note);
        };
        if registration.program()?.as_deref() != Some(&note.program) {
            return Ok(false);
        }
        let mut is_changed = false;
        let keeps_import = notes::shares_import(directory, &registration);
        for edit in removal(&registration, keeps_import)? {
            let path = edit.file.path().to_owned();
            is_changed |= edit.change.is_needed();
            if edit.change.is_needed() {
                self.report("Removed the runtime from", &path);
            }
            if !self.is_dry {
                edit.carry_out()?;
            }
        }
        Ok(is_changed)
    }

    fn undo_hook(&self, note: &Note) -> Result<bool> {
        let file = HostFile::open(&note.config)?;
        let is_ours = file.text() == Some(&crate::engine::oci_hook::text(&note.program));
        if is_ours {
            self.report("Removed", &note.config);
            if !self.is_dry {
                file.remove()?;
            }
        }
        Ok(is_ours)
    }

    /// Removes the specification that the units wrote, if it names our hook; returns true if this was reported.
    fn remove_specification(&self, path: &Path) -> bool {
        let removed = HostFile::open(path).and_then(|file| {
            let text = file.text().unwrap_or_default();
            let is_ours = nvc_cdi::file::command_of(text).is_some()
                && self.programs.are_named_in(text).is_some();
            if is_ours {
                self.report("Removed", path);
            }
            if is_ours && !self.is_dry {
                file.remove()?;
            }
            Ok(is_ours)
        });
        removed.unwrap_or_else(|error: Error| {
            warn!("{}", error.message());
            false
        })
    }

    /// Makes an engine read its configuration again, or prints how.
    fn reload(&self, engine: Engine) {
        let unit = match engine {
            Engine::Docker => "docker",
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
        };
        if engine != Engine::Docker {
            info!("Restart {unit} to apply that: systemctl restart {unit}");
        } else if !self.is_dry && !reload_docker() {
            info!("Make dockerd read its file: kill -s HUP $(cat /var/run/docker.pid)");
        }
    }

    fn report(&self, what: &str, path: &Path) {
        let would = if self.is_dry { "dry run: " } else { "" };
        info!("{would}{what} {}", path.display());
    }
}

/// Makes docker's service reload its file; returns false if systemd does not run it.
fn reload_docker() -> bool {
    if !Path::new("/run/systemd/system").exists() {
        return false;
    }
    let directories: Vec<PathBuf> = programs::directories(None);
    let Some(systemctl) = programs::find("systemctl", &directories) else {
        return false;
    };
    let Some(systemctl) = systemctl.to_str() else {
        return false;
    };
    let succeeds = |arguments: &[&str]| ask(systemctl, arguments).is_ok();
    succeeds(&["is-active", "-q", "docker.service"]) && succeeds(&["reload", "docker.service"])
}
