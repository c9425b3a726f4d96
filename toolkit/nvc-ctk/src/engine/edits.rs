//! Turns a registration into edits of the engine's files, and back.
//!
//! `configure` and `unregister` share it. The engines' modules are pure; here their files are opened, and the records of
//! undo are read.

use std::path::{Path, PathBuf};

use libnvc::Result;
use log::info;
use nvc_hostfile::HostFile;

use crate::engine::undo::{self, Removal};
use crate::engine::{Change, Files, Runtime, containerd, crio, docker, record, tables};

/// The engines that can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Containerd,
    Crio,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Docker, Self::Containerd, Self::Crio];

    /// Returns the value of --runtime.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
        }
    }

    pub(crate) fn config(self) -> &'static str {
        match self {
            Self::Docker => docker::CONFIG,
            Self::Containerd => containerd::CONFIG,
            Self::Crio => crio::CONFIG,
        }
    }

    pub(crate) fn drop_in(self) -> Option<&'static str> {
        match self {
            Self::Docker => None,
            Self::Containerd => Some(containerd::DROP_IN),
            Self::Crio => Some(crio::DROP_IN),
        }
    }
}

/// A validated request.
pub(crate) struct Registration {
    pub(crate) engine: Engine,
    pub(crate) config: PathBuf,
    pub(crate) drop_in: Option<PathBuf>,
    pub(crate) runtime: Runtime,
    pub(crate) drops_default: bool,
}

impl Registration {
    /// Returns the files, which are not read yet.
    fn files(&self) -> Files<'_> {
        Files {
            path: &self.config,
            text: None,
            drop_in: self.drop_in.as_deref(),
            drop_in_text: None,
            dumped: None,
            drops_default: self.drops_default,
        }
    }

    /// Returns containerd's drop-in, which repeats a section of the main file.
    fn containerd_drop_in(&self) -> Option<&Path> {
        let is_containerd = self.engine == Engine::Containerd;
        self.drop_in.as_deref().filter(|_| is_containerd)
    }

    /// Returns the program that the files name for the runtime; None if it is not registered.
    pub(crate) fn program(&self) -> Result<Option<String>> {
        for path in self.drop_in.iter().chain([&self.config]) {
            let file = HostFile::open(path)?;
            let Some(text) = file.text().filter(|text| !text.trim().is_empty()) else {
                continue;
            };
            let name = &self.runtime.name;
            let found = match self.engine {
                Engine::Docker => docker::program(path, text, name)?,
                Engine::Containerd => containerd::program(path, text, name)?,
                Engine::Crio => crio::program(path, text, name)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// A change of a file that was opened for it.
pub(crate) struct Edit {
    pub(crate) file: HostFile,
    pub(crate) change: Change,
    pub(crate) record: Option<record::Record>,
    /// The record is the first one, or the last one goes, even if the text stays: it has an import of the administrator.
    is_new: bool,
}

impl Edit {
    /// Writes the change; returns its file if there was one to write.
    pub(crate) fn carry_out(self) -> Result<Option<PathBuf>> {
        let record = self.record.as_ref();
        self.change.carry_out(self.file, record, self.is_new)?;
        Ok(self.change.is_needed().then_some(self.change.path))
    }
}

/// Returns the edits that register the runtime. `is_noted` is true if an earlier registration needs containerd's import.
pub(crate) fn addition(
    wanted: &Registration,
    dumped: Option<&str>,
    is_noted: bool,
) -> Result<Vec<Edit>> {
    let config = HostFile::open(&wanted.config)?;
    let drop_in = wanted.drop_in.as_deref().map(HostFile::open).transpose()?;
    let files = Files {
        text: config.text(),
        drop_in_text: drop_in.as_ref().and_then(HostFile::text),
        dumped,
        ..wanted.files()
    };
    let changes = changes(wanted.engine, files, &wanted.runtime)?;
    let main = config.text().unwrap_or_default().to_owned();
    let own = drop_in.as_ref().and_then(HostFile::text);
    let is_imported = !is_noted && is_imported_by_others(wanted, &main, own)?;
    let mut files: Vec<HostFile> = [config].into_iter().chain(drop_in).collect();
    changes
        .into_iter()
        .filter_map(|change| {
            let place = files.iter().position(|file| file.path() == change.path)?;
            Some((files.swap_remove(place), change))
        })
        .map(|(file, change)| {
            let earlier = record::load(Path::new(record::DIRECTORY), &file)?;
            let record = match wanted.containerd_drop_in() {
                Some(path) if change.path == path => {
                    record_of_drop_in(wanted, &change, earlier.clone(), &main)?
                }
                _ => record_of(wanted, &change, earlier.as_ref(), &main, is_imported)?,
            };
            Ok(Edit {
                is_new: is_imported && earlier.is_none() && change.path == wanted.config,
                file,
                change,
                record,
            })
        })
        .collect()
}

/// Returns true if the administrator wrote the import of our drop-in, which has no runtime of ours yet: it serves other
/// files too, and stays when ours goes.
fn is_imported_by_others(wanted: &Registration, main: &str, own: Option<&str>) -> Result<bool> {
    let Some(path) = wanted.containerd_drop_in() else {
        return Ok(false);
    };
    if !containerd::imports(&wanted.config, main, path)? {
        return Ok(false);
    }
    let parsed = tables::parse(&wanted.config, main)?;
    let names = own.map(|text| containerd::names(path, text, &parsed));
    Ok(names.transpose()?.unwrap_or_default().is_empty())
}

fn record_of(
    wanted: &Registration,
    change: &Change,
    earlier: Option<&record::Record>,
    main: &str,
    is_imported: bool,
) -> Result<Option<record::Record>> {
    let after = change.after.as_deref().unwrap_or_default();
    let name = registrant(wanted, &change.path, after)?;
    let restore =
        |text: &str, removal: Removal<'_>| restore(wanted, &change.path, text, removal, main);
    let is_ours =
        |text: &str, bare: Option<&str>| !is_imported && is_ours(wanted, &change.path, text, bare);
    undo::record_for(change, earlier, &name, &restore, &is_ours)
}

/// Returns the record of a file that we write as a whole: what was there before the first of our runtimes, if anything.
fn record_of_drop_in(
    wanted: &Registration,
    change: &Change,
    earlier: Option<record::Record>,
    main: &str,
) -> Result<Option<record::Record>> {
    let main = tables::parse(&wanted.config, main)?;
    let names = |text: &str| containerd::names(&change.path, text, &main);
    let before = match (earlier, &change.before) {
        (Some(record), _) => record.before,
        (None, Some(text)) if names(text)?.is_empty() => Some(text.clone()),
        (None, _) => None,
    };
    let (Some(before), Some(after)) = (before, &change.after) else {
        return Ok(None);
    };
    Ok(Some(record::Record {
        before: Some(before),
        after: record::mark(after),
        names: names(after)?,
    }))
}

fn changes(engine: Engine, files: Files<'_>, runtime: &Runtime) -> Result<Vec<Change>> {
    match engine {
        Engine::Docker => Ok(vec![docker::add(files.path, files.text, runtime)?]),
        Engine::Containerd => containerd::add(files, runtime),
        Engine::Crio => Ok(vec![crio::add(files, runtime)?]),
    }
}

/// Returns true if a file's text is this program's output for another text.
fn is_ours(wanted: &Registration, path: &Path, text: &str, bare: Option<&str>) -> bool {
    let files = Files {
        text: bare,
        ..wanted.files()
    };
    [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .any(|(set_as_default, enable_cdi)| {
            let runtime = Runtime {
                set_as_default,
                enable_cdi,
                ..wanted.runtime.clone()
            };
            let made = changes(wanted.engine, files, &runtime).unwrap_or_default();
            made.iter()
                .any(|change| change.path == path && change.after.as_deref() == Some(text))
        })
}

/// Returns the edits that undo it. `keeps_import` is true if another drop-in of ours needs containerd's import. It stays
/// also if the administrator has a drop-in that needs it, and then a message says so.
pub(crate) fn removal(wanted: &Registration, keeps_import: bool) -> Result<Vec<Edit>> {
    let config = HostFile::open(&wanted.config)?;
    let main = config.text().unwrap_or_default().to_owned();
    let mut edits = Vec::new();
    let mut keeps_import = keeps_import;
    if let Some(path) = &wanted.drop_in {
        let edit = removal_from(wanted, HostFile::open(path)?, &wanted.runtime.name, &main)?;
        if let (Some(path), Some(text)) = (wanted.containerd_drop_in(), &edit.change.after) {
            let main = tables::parse(&wanted.config, &main)?;
            keeps_import |= !containerd::names(path, text, &main)?.is_empty();
        }
        edits.push(edit);
    }
    if !keeps_import
        && let Some(drop_in) = wanted.containerd_drop_in()
        && containerd::imports(&wanted.config, &main, drop_in)?
        && let Some(other) = other_imported(drop_in)
    {
        info!(
            "{} still imports {}, since {} needs that",
            wanted.config.display(),
            containerd::pattern_for(drop_in),
            other.display()
        );
        keeps_import = true;
    }
    let name = if keeps_import {
        wanted.runtime.name.clone()
    } else {
        registrant(wanted, &wanted.config, &main)?
    };
    edits.push(removal_from(wanted, config, &name, &main)?);
    Ok(edits)
}

/// Returns the first other file that the import of a drop-in covers.
fn other_imported(drop_in: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(drop_in.parent()?).ok()?.flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| containerd::import_covers(drop_in, path) && path.is_file())
        .min()
}

fn removal_from(wanted: &Registration, file: HostFile, name: &str, main: &str) -> Result<Edit> {
    let path = file.path().to_owned();
    let earlier = record::load(Path::new(record::DIRECTORY), &file)?;
    let restore = |text: &str, removal: Removal<'_>| restore(wanted, &path, text, removal, main);
    let (change, record) = undo::undo(&path, file.text(), earlier.as_ref(), name, &restore)?;
    let is_main = wanted.containerd_drop_in().is_some() && path == wanted.config;
    Ok(Edit {
        file,
        change,
        is_new: is_main && earlier.is_some() && record.is_none(),
        record,
    })
}

/// Returns the name by which a record lists a registration: the runtime's, or for an import the drop-in's.
fn registrant(wanted: &Registration, path: &Path, text: &str) -> Result<String> {
    match wanted.containerd_drop_in() {
        Some(drop_in) if path == wanted.config && containerd::imports(path, text, drop_in)? => {
            Ok(drop_in.to_string_lossy().into())
        }
        _ => Ok(wanted.runtime.name.clone()),
    }
}

/// Removes the runtime from one of the engine's files. `main` is the text of its main file.
fn restore(
    wanted: &Registration,
    path: &Path,
    text: &str,
    removal: Removal<'_>,
    main: &str,
) -> Result<Option<String>> {
    match (wanted.engine, wanted.containerd_drop_in()) {
        (Engine::Docker, _) => docker::restore(path, text, removal),
        (Engine::Crio, _) => crio::restore(path, text, removal),
        // A drop-in with no other runtime of ours is ours as a whole.
        (Engine::Containerd, Some(drop_in)) if path == drop_in => {
            if containerd::program(path, text, removal.name)?.is_none() {
                return Ok(Some(text.into()));
            }
            let main = tables::parse(&wanted.config, main)?;
            let rest = containerd::without(path, text, removal.name, &main)?;
            Ok(rest.or(removal.before.map(Into::into)))
        }
        (Engine::Containerd, Some(drop_in)) if Path::new(removal.name) == drop_in => {
            let name = &wanted.runtime.name;
            containerd::restore(path, text, Removal { name, ..removal }, Some(drop_in))
        }
        (Engine::Containerd, _) => containerd::restore(path, text, removal, None),
    }
}
