//! Removes the toolkit from the configuration of engines, before its programs are removed.
//!
//! An engine whose configuration names a missing runtime starts no container with it, and by default none at all. What
//! is ours is seen: an entry whose program is one of those that go, a hook file that we would write in the same way. It
//! runs in the scripts of packages: whatever fails is reported, and the rest is done.

mod containers;
mod docker;
mod programs;

use std::cell::RefCell;
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nvc_hostfile::HostFile;

use crate::engine::edits::{Edit, Engine, Read, removal};
use crate::engine::{daemon, matching, oci_hook, program};
use crate::line::CommandLine;
use docker::Docker;
use programs::Programs;

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

/// A further directory of hook files, of older engines.
const OLDER_HOOKS: &str = "/usr/libexec/oci/hooks.d";

/// Further files of root's that can name a program: files, and directories of them.
const OTHERS: [&str; 4] = [
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*",
    "/etc/cdi/*",
    "/var/run/cdi/*",
];

/// Returns 1 if something could not be removed.
pub(super) fn run(line: &CommandLine) -> Result<u8> {
    let names: Vec<&str> = match line.list("program") {
        [] => ALL.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let own = program::own();
    let directory = own.parent().ok_or_else(|| {
        Error::new(ErrorKind::System, "this program's path is unknown").hint("mount /proc")
    })?;
    let work = Work {
        programs: Programs::new(directory, &names),
        is_dry: line.flag("dry-run"),
    };
    for container in containers::running(Path::new("/"), &work.programs) {
        warn!("{container}");
    }
    let mut is_complete = true;
    let mut failed = |result: Result<()>| {
        if let Err(error) = result {
            warn!("{}", error.message());
            is_complete = false;
        }
    };
    let mut lasts = Vec::new();
    for engine in Engine::ALL {
        failed(work.engine(engine, &mut lasts));
    }
    failed(work.hooks());
    let specification = Path::new(SPECIFICATION);
    if names.contains(&HOOK_OF_SPECIFICATIONS) {
        failed(work.specification(specification));
    }
    for path in OTHERS
        .iter()
        .flat_map(|pattern| matching(Path::new(pattern)))
    {
        if !(work.is_dry && path == specification) {
            work.mention(&path);
        }
    }
    lasts.iter().for_each(|last| info!("{last}"));
    Ok(u8::from(!is_complete))
}

struct Work<'a> {
    programs: Programs<'a>,
    is_dry: bool,
}

impl Work<'_> {
    /// Removes the programs from all files that an engine reads: its usual ones, and those that its command line names.
    /// What the administrator must do afterwards is added to `lasts`.
    fn engine(&self, engine: Engine, lasts: &mut Vec<String>) -> Result<()> {
        let unit = format!("{}.service", engine.name());
        let lines = daemon::command_lines(engine.daemon(), &unit);
        let usual = engine.files_of(&[]);
        let named = engine.files_of(&lines);
        let is_other = named.config != usual.config;
        let main = named.config.clone();
        let mut had_default = false;
        let mut changed: Vec<Edit> = Vec::new();
        let gone = RefCell::new(Vec::new());
        let mut result = Ok(());
        for Read {
            config, drop_in, ..
        } in std::iter::once(usual).chain(is_other.then_some(named))
        {
            let includes = |_: &Path, name: &str, program: &str| {
                let is_removed = self.programs.include(program);
                if is_removed {
                    gone.borrow_mut().push(name.to_owned());
                }
                is_removed
            };
            let done = removal(engine, &config, drop_in.as_deref(), &includes).map(|found| {
                had_default |= found.had_default;
                for edit in found.edits {
                    let path = &edit.change.path;
                    let is_new = changed.iter().all(|other| other.change.path != *path);
                    if edit.change.is_needed() && is_new {
                        self.report("Removed the runtime from", &edit.change.path);
                        changed.push(edit);
                    }
                }
            });
            result = result.and(done.map_err(|error| {
                error.context(format!("{}: the runtime stays", config.display()))
            }));
        }
        let is_changed = !changed.is_empty();
        let name = engine.name();
        let docker = match engine {
            Engine::Docker => {
                let docker = Docker::new(lines, &gone.into_inner(), &self.programs);
                had_default |= docker.has_default(&self.programs);
                Some(docker)
            }
            Engine::Containerd | Engine::Crio if is_changed => {
                lasts.push(format!(
                    "Restart {name} to apply that: systemctl restart {name}"
                ));
                None
            }
            Engine::Containerd | Engine::Crio => None,
        };
        if had_default {
            info!("It was the default runtime of {name}, whose own, runc, is the default again");
        }
        if !self.is_dry {
            for edit in changed {
                let path = edit.change.path.clone();
                let done = edit.carry_out().map(drop);
                result = result.and(done.map_err(|error| {
                    error.context(format!("{}: the runtime stays", path.display()))
                }));
            }
        }
        if let Some(docker) = docker {
            let needs_reload = (is_changed || had_default) && result.is_ok();
            let reload = needs_reload.then_some((main.as_path(), had_default));
            lasts.extend(docker.apply(reload, self.is_dry));
        }
        result
    }

    /// Removes the hook files that `configure` would write in the same way.
    fn hooks(&self) -> Result<()> {
        let directories = oci_hook::DIRECTORIES.into_iter().chain([OLDER_HOOKS]);
        let patterns = directories.map(|directory| Path::new(directory).join("*.json"));
        let mut result = Ok(());
        for path in patterns.flat_map(|pattern| matching(&pattern)) {
            let done = HostFile::open(&path).and_then(|file| {
                let text = file.text().unwrap_or_default();
                let Some(program) = self.programs.named_in(text) else {
                    return Ok(());
                };
                if text != oci_hook::text(&program) {
                    self.mention(&path);
                    return Ok(());
                }
                self.report("Removed", &path);
                if self.is_dry { Ok(()) } else { file.remove() }
            });
            result = result.and(done);
        }
        result
    }

    /// Removes the specification that the units wrote, if it names our hook.
    fn specification(&self, path: &Path) -> Result<()> {
        let file = HostFile::open(path)?;
        let text = file.text().unwrap_or_default();
        if nvc_cdi::file::command_of(text).is_none() || self.programs.named_in(text).is_none() {
            return Ok(());
        }
        self.report("Removed", path);
        if self.is_dry { Ok(()) } else { file.remove() }
    }

    /// Names a file of root's that names one of the programs, and stays as it is.
    fn mention(&self, path: &Path) {
        let text = HostFile::open(path).ok();
        let text = text.as_ref().and_then(HostFile::text).unwrap_or_default();
        if let Some(program) = self.programs.named_in(text) {
            warn!(
                "{} names {program}, which is being removed; it stays as it is: remove that from it, or the file",
                path.display()
            );
        }
    }

    fn report(&self, what: &str, path: &Path) {
        let would = if self.is_dry { "dry run: " } else { "" };
        info!("{would}{what} {}", path.display());
    }
}
