//! Turns a registration into edits of the files that an engine reads, and its removal too.
//!
//! `configure` and `unregister` share it. The engines' modules are pure; here their files are opened.

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use log::info;
use nvc_hostfile::HostFile;

use super::daemon::CommandLine;
use super::{Change, Files, IsRemoved, Removed, Runtime, Text, containerd, crio, docker, matching};

/// The engines that can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Containerd,
    Crio,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Docker, Self::Containerd, Self::Crio];

    /// Returns the value of --runtime, which is the unit's name too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
        }
    }

    /// Returns the daemon's program.
    pub(crate) fn daemon(self) -> &'static str {
        match self {
            Self::Docker => "dockerd",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Self::Docker => docker::CONFIG,
            Self::Containerd => containerd::CONFIG,
            Self::Crio => crio::CONFIG,
        }
    }

    /// Returns the files that the engine reads by its command lines: the main file, and our drop-in.
    pub(crate) fn files_of(self, daemon: &[CommandLine]) -> Read {
        let (option, short) = match self {
            Self::Docker => ("config-file", None),
            Self::Containerd | Self::Crio => ("config", Some('c')),
        };
        let named = |option, short| {
            let last = |line: &CommandLine| Some(line.values(option, short).last()?.to_string());
            let mut lines = daemon.iter();
            lines.find_map(|line| Some((PathBuf::from(last(line)?), line.origin.clone())))
        };
        let (config, origin) = match named(option, short) {
            Some((config, origin)) if config != Path::new(self.config()) => (config, Some(origin)),
            _ => (self.config().into(), None),
        };
        let drop_in = match self {
            Self::Docker => None,
            Self::Containerd => Some(containerd::drop_in_beside(&config)),
            Self::Crio => {
                let usual = Path::new(crio::DROP_IN);
                let other = named("config-dir", Some('d'));
                let directory = other.map(|(directory, _)| directory.join("99-nvidia.toml"));
                Some(directory.unwrap_or_else(|| usual.into()))
            }
        };
        Read {
            config,
            drop_in,
            origin,
        }
    }

    /// Returns the files that the engine reads after its main file, in its order.
    pub(crate) fn others(
        self,
        config: &Path,
        text: &str,
        drop_in: Option<&Path>,
    ) -> Result<Vec<PathBuf>> {
        match self {
            Self::Docker => Ok(Vec::new()),
            Self::Containerd => containerd::imported(config, text),
            Self::Crio => {
                let directory = drop_in.and_then(Path::parent);
                let all = directory.map(|directory| matching(&directory.join("*")));
                Ok(all.unwrap_or_default())
            }
        }
    }

    fn remove(self, path: &Path, text: &str, is_removed: &IsRemoved<'_>) -> Result<Removed> {
        match self {
            Self::Docker => docker::remove(path, text, is_removed),
            Self::Containerd => containerd::remove(path, text, is_removed),
            Self::Crio => crio::remove(path, text, is_removed),
        }
    }

    /// Returns the runtime that a drop-in makes the default.
    fn default_runtime(self, path: &Path, text: &str) -> Result<Option<String>> {
        match self {
            Self::Docker => Ok(None),
            Self::Containerd => containerd::default_runtime(path, text),
            Self::Crio => crio::default_runtime(path, text),
        }
    }
}

/// The files that an engine reads.
#[derive(Debug)]
pub(crate) struct Read {
    /// The main file.
    pub(crate) config: PathBuf,
    /// Our drop-in.
    pub(crate) drop_in: Option<PathBuf>,
    /// Where the engine's command line is that names another main file than the usual one.
    pub(crate) origin: Option<String>,
}

/// A validated request.
pub(crate) struct Registration {
    pub(crate) engine: Engine,
    pub(crate) config: PathBuf,
    pub(crate) drop_in: Option<PathBuf>,
    pub(crate) runtime: Runtime,
    pub(crate) drops_default: bool,
}

/// A change of a file that was opened for it.
pub(crate) struct Edit {
    pub(crate) file: HostFile,
    pub(crate) change: Change,
}

impl Edit {
    fn new(file: HostFile, after: Option<String>) -> Self {
        let change = Change {
            path: file.path().into(),
            before: file.text().map(Into::into),
            after,
        };
        Self { file, change }
    }

    /// Writes the change; returns its file if there was one to write.
    pub(crate) fn carry_out(self) -> Result<Option<PathBuf>> {
        self.change.carry_out(self.file)?;
        Ok(self.change.is_needed().then_some(self.change.path))
    }
}

/// The longest file of an engine. Parsing one takes 66 times its size of memory.
const MAX_SIZE: usize = 1 << 20;

/// Opens a file of an engine.
fn open(path: &Path) -> Result<HostFile> {
    let file = HostFile::open(path)?;
    if file.text().is_some_and(|text| text.len() > MAX_SIZE) {
        let cause = format!(
            "it is larger than {} MiB, as no file of an engine is",
            MAX_SIZE >> 20
        );
        return Err(Error::fault(ErrorKind::Malformed, path.display(), cause));
    }
    Ok(file)
}

/// Returns the edits that register the runtime.
pub(crate) fn addition(wanted: &Registration, dumped: Option<&str>) -> Result<Vec<Edit>> {
    let engine = wanted.engine;
    let config = open(&wanted.config)?;
    let text = config.text().unwrap_or_default();
    let drop_in = wanted.drop_in.as_deref().map(open).transpose()?;
    let mut others = Vec::new();
    for path in engine.others(&wanted.config, text, wanted.drop_in.as_deref())? {
        let is_ours = wanted.drop_in.as_ref() == Some(&path);
        let other = (!is_ours).then(|| open(&path)).transpose()?;
        if let Some(text) = other.as_ref().and_then(HostFile::text) {
            let text = text.into();
            others.push(Text { path, text });
        }
    }
    let files = Files {
        path: &wanted.config,
        text: config.text(),
        drop_in: wanted.drop_in.as_deref(),
        drop_in_text: drop_in.as_ref().and_then(HostFile::text),
        others: &others,
        dumped,
        drops_default: wanted.drops_default,
    };
    let changes = match engine {
        Engine::Docker => vec![docker::add(files.path, files.text, &wanted.runtime)?],
        Engine::Containerd => containerd::add(files, &wanted.runtime)?,
        Engine::Crio => vec![crio::add(files, &wanted.runtime)?],
    };
    if let (Some(path), Some(text)) = (files.drop_in, files.drop_in_text) {
        say_what_goes(wanted, path, text, &changes)?;
    }
    let mut files: Vec<HostFile> = [config].into_iter().chain(drop_in).collect();
    let edits = changes.into_iter().filter_map(|change| {
        let place = files.iter().position(|file| file.path() == change.path)?;
        let file = files.swap_remove(place);
        Some(Edit { file, change })
    });
    Ok(edits.collect())
}

/// Says that a default runtime goes that an earlier call has written.
fn say_what_goes(
    wanted: &Registration,
    path: &Path,
    before: &str,
    changes: &[Change],
) -> Result<()> {
    let name = &wanted.runtime.name;
    let after = changes.iter().find(|change| change.path == path);
    let after = after.and_then(|change| change.after.as_deref());
    let is_default = |text: &str| -> Result<bool> {
        let default = wanted.engine.default_runtime(path, text)?;
        Ok(default.as_ref() == Some(name))
    };
    if is_default(before)? && !after.is_some_and(|text| is_default(text).unwrap_or(true)) {
        info!(
            "{name} is no longer the default runtime of {}: --nvidia-set-as-default was not given",
            path.display()
        );
    }
    Ok(())
}

/// The edits that remove runtimes.
pub(crate) struct Removal {
    pub(crate) edits: Vec<Edit>,
    /// True if one of them was the default.
    pub(crate) had_default: bool,
}

/// Returns the edits that remove runtimes from all files that an engine reads, and what is then left without a purpose: a
/// drop-in that only repeats other files, and its import. `is_removed` gets a file, a name and a program.
pub(crate) fn removal(
    engine: Engine,
    config: &Path,
    drop_in: Option<&Path>,
    is_removed: &dyn Fn(&Path, &str, &str) -> bool,
) -> Result<Removal> {
    let main = open(config)?;
    let text = main.text().unwrap_or_default();
    let mut others = engine.others(config, text, drop_in)?;
    if let Some(drop_in) = drop_in
        && !others.iter().any(|known| known == drop_in)
    {
        others.push(drop_in.into());
    }
    let others = others.iter().map(|path| open(path));
    let mut removal = Removal {
        edits: Vec::new(),
        had_default: false,
    };
    for file in std::iter::once(Ok(main)).chain(others) {
        let file = file?;
        let text = file.text().map(str::to_owned);
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
            let text = file.text().map(Into::into);
            removal.edits.push(Edit::new(file, text));
            continue;
        };
        let path = file.path();
        let is_removed = |name: &str, program: &str| is_removed(path, name, program);
        let removed = engine.remove(path, &text, &is_removed)?;
        removal.had_default |= removed.had_default;
        removal.edits.push(Edit::new(file, removed.text));
    }
    if engine == Engine::Containerd {
        remove_copies(&mut removal.edits)?;
        remove_import(&mut removal.edits)?;
    }
    Ok(removal)
}

/// Removes drop-ins that lost a runtime and now only repeat other files. Those that stay repeat their default runtime.
fn remove_copies(edits: &mut [Edit]) -> Result<()> {
    for index in 1..edits.len() {
        let (before, rest) = edits.split_at_mut(index);
        let Some((edit, after)) = rest.split_first_mut() else {
            continue;
        };
        let others = before.iter().chain(after.iter());
        let others: Vec<&str> = others
            .filter_map(|edit| edit.change.after.as_deref())
            .collect();
        let change = &mut edit.change;
        let text = change.after.clone().filter(|_| change.is_needed());
        if let Some(text) = text {
            let text = containerd::with_default_of_others(&change.path, &text, &others)?;
            let is_copy = containerd::is_copy(&change.path, &text, &others)?;
            change.after = (!is_copy).then_some(text);
        }
    }
    Ok(())
}

/// Removes the import of drop-ins that go, from the main file, unless it imports another file too.
fn remove_import(edits: &mut [Edit]) -> Result<()> {
    let Some((main, others)) = edits.split_first_mut() else {
        return Ok(());
    };
    for edit in others.iter() {
        let Change {
            path,
            before,
            after,
        } = &edit.change;
        if before.is_none() || after.is_some() {
            continue;
        }
        let pattern = containerd::pattern_for(path);
        let goes = |found: &PathBuf| {
            let edit = others.iter().find(|edit| edit.change.path == *found);
            edit.is_some_and(|edit| edit.change.after.is_none())
        };
        let stays = matching(Path::new(&pattern));
        let stays = stays.into_iter().find(|found| !goes(found));
        let config = main.change.path.display();
        if let Some(other) = stays {
            let other = other.display();
            info!("{config} still imports {pattern}, since {other} needs that");
        } else if let Some(text) = &main.change.after {
            let text = containerd::without_import(&main.change.path, text, path)?;
            main.change.after = Some(text);
        }
    }
    Ok(())
}
