//! Turns a registration into edits of the engine's files, and back.
//!
//! `configure` and `unregister` share it. The engines' modules are pure; here their files are opened, and the records of
//! undo are read.

use std::path::{Path, PathBuf};

use libnvc::Result;
use nvc_hostfile::HostFile;

use crate::engine::{Change, Runtime, containerd, crio, docker, record, undo};

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
}

impl Edit {
    /// Writes the change; returns its file if there was one to write.
    pub(crate) fn carry_out(self) -> Result<Option<PathBuf>> {
        self.change.carry_out(self.file, self.record.as_ref())?;
        Ok(self.change.is_needed().then_some(self.change.path))
    }
}

/// Returns the edits that register the runtime.
pub(crate) fn addition(wanted: &Registration, dumped: Option<&str>) -> Result<Vec<Edit>> {
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

/// Returns the edits that undo it.
pub(crate) fn removal(wanted: &Registration) -> Result<Vec<Edit>> {
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
