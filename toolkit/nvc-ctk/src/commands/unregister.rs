//! Removes the toolkit from the configuration of engines, before its programs are removed.
//!
//! An engine whose configuration names a missing runtime starts no container with it, and by default none at all. What
//! is ours is seen: an entry whose program is one of those that go, a hook file that we would write in the same way. It
//! runs in the scripts of packages: whatever fails is reported, and the rest is done.

mod containers;
mod docker;
mod programs;

use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nvc_hostfile::HostFile;

use crate::ask::find;
use crate::engine::edits::{Edit, Engine, Read, removal};
use crate::engine::{matching, oci_hook, program};
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
    "nvidia-cdi-hook",
];

/// The specification that the units write.
const SPECIFICATION: &str = "/var/run/cdi/nvidia.yaml";

/// A further directory of hook files, of older engines.
const OLDER_HOOKS: &str = "/usr/libexec/oci/hooks.d";

/// Further files of root's that can name a program, in directories too.
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
    let directories = oci_hook::DIRECTORIES.into_iter().chain([OLDER_HOOKS]);
    let patterns = directories.map(|directory| Path::new(directory).join("*.json"));
    for path in patterns.flat_map(|pattern| matching(&pattern)) {
        failed(work.file(&path, &|text, program| text == oci_hook::text(program)));
    }
    let others = OTHERS.iter().map(Path::new);
    for path in others.flat_map(matching) {
        if path == Path::new(SPECIFICATION) {
            failed(work.file(&path, &|text, _| nvc_cdi::file::command_of(text).is_some()));
        } else {
            // Others' files may be unreadable.
            let _ = work.file(&path, &|_, _| false);
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
        let (name, lines) = (engine.name(), engine.command_lines());
        let is_there = !lines.is_empty() || find(engine.daemon()).is_some();
        let (usual, named) = (engine.files_of(&[]), engine.files_of(&lines));
        let main = named.config.clone();
        let named = (named.config != usual.config).then_some(named);
        let is_removed = |_: &Path, _: &str, program: &str| self.programs.include(program);
        let (mut names, mut had_default, mut is_changed) = (Vec::new(), false, false);
        let mut result = Ok(());
        for Read {
            config, drop_in, ..
        } in std::iter::once(usual).chain(named)
        {
            let found = match removal(engine, &config, drop_in.as_deref(), &is_removed) {
                Ok(found) => found,
                Err(error) => {
                    let stays = format!("{}: the runtime stays", config.display());
                    result = result.and(Err(error.context(stays)));
                    continue;
                }
            };
            names.extend(found.names);
            had_default |= found.had_default;
            for edit in found.edits.into_iter().filter(Edit::is_needed) {
                self.report("Removed the runtime from", edit.path());
                is_changed = true;
                if !self.is_dry {
                    result = result.and(edit.carry_out().map(drop));
                }
            }
        }
        let docker = (engine == Engine::Docker).then(|| Docker::new(lines, &names, &self.programs));
        had_default |= docker
            .iter()
            .any(|docker| docker.has_default(&self.programs));
        if had_default {
            info!("It was the default runtime of {name}, whose own, runc, is the default again");
        }
        match docker {
            Some(docker) => {
                let needs_reload = (is_changed || had_default) && result.is_ok();
                let reload = needs_reload.then_some((main.as_path(), had_default));
                lasts.extend(docker.apply(reload, self.is_dry));
            }
            None if is_changed && is_there => lasts.push(format!(
                "Restart {name} to apply that: systemctl restart {name}"
            )),
            None => {}
        }
        result
    }

    /// Removes a file that names one of the programs if it is ours, as the function says of its text and the program.
    /// Any other one stays as it is, and is named.
    fn file(&self, path: &Path, is_ours: &dyn Fn(&str, &str) -> bool) -> Result<()> {
        let file = HostFile::open(path)?;
        let text = file.text().unwrap_or_default();
        match self.programs.named_in(text) {
            Some(program) if is_ours(text, &program) => {
                self.report("Removed", path);
                if self.is_dry { Ok(()) } else { file.remove() }
            }
            Some(program) => {
                warn!(
                    "{} names {program}, which is being removed; it stays as it is: remove that from it, or the file",
                    path.display()
                );
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn report(&self, what: &str, path: &Path) {
        let would = if self.is_dry { "dry run: " } else { "" };
        info!("{would}{what} {}", path.display());
    }
}
