//! Turns a registration into edits of the files that an engine reads, and its removal too.
//!
//! `configure` and `unregister` share it. The engines' modules are pure; here their files are opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use log::info;
use nvc_hostfile::HostFile;
use toml_edit::DocumentMut;

use super::daemon::{self, DaemonLine};
use super::tables::{self, Layout};
use super::{Files, IsRemoved, Removed, Runtime, Text, containerd, crio, docker, matching};

/// The engines that can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Docker,
    Containerd,
    Crio,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Docker, Self::Containerd, Self::Crio];

    /// Returns the value of --runtime, which is the unit's name too, the daemon's program, and its usual file.
    fn facts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Docker => ("docker", "dockerd", docker::CONFIG),
            Self::Containerd => ("containerd", "containerd", containerd::CONFIG),
            Self::Crio => ("crio", "crio", crio::CONFIG),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.facts().0
    }

    pub(crate) fn daemon(self) -> &'static str {
        self.facts().1
    }

    /// Returns the command lines of the running daemon and of its unit.
    pub(crate) fn command_lines(self) -> Vec<DaemonLine> {
        daemon::command_lines(self.daemon(), &format!("{}.service", self.name()))
    }

    /// Returns the files that the engine reads by its command lines: the main file, and our drop-in.
    pub(crate) fn files_of(self, daemon: &[DaemonLine]) -> Read {
        let (option, short) = match self {
            Self::Docker => ("config-file", None),
            Self::Containerd | Self::Crio => ("config", Some('c')),
        };
        let named = |option, short| {
            let last = |line: &DaemonLine| Some(line.values(option, short).last()?.to_string());
            let mut lines = daemon.iter();
            lines.find_map(|line| Some((PathBuf::from(last(line)?), line.origin.clone())))
        };
        let (_, _, usual) = self.facts();
        let (config, origin) = match named(option, short) {
            Some((config, origin)) if config != Path::new(usual) => (config, Some(origin)),
            _ => (usual.into(), None),
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
                let pattern = drop_in.map(|drop_in| drop_in.with_file_name("*"));
                Ok(pattern
                    .iter()
                    .flat_map(|pattern| matching(pattern))
                    .collect())
            }
        }
    }

    pub(super) fn remove(
        self,
        path: &Path,
        text: &str,
        is_removed: &IsRemoved<'_>,
    ) -> Result<Removed> {
        match self {
            Self::Docker => docker::remove(path, text, is_removed),
            Self::Containerd => containerd::remove(path, text, is_removed),
            Self::Crio => crio::layout().remove(path, &tables::parse(path, text)?, is_removed),
        }
    }

    fn layout(self, document: &DocumentMut) -> Result<Layout> {
        match self {
            Self::Crio => Ok(crio::layout()),
            _ => containerd::layout_of(document),
        }
    }

    /// Returns the runtimes that a file of containerd or CRI-O registers, with their programs.
    pub(crate) fn registered(self, path: &Path, text: &str) -> Result<BTreeMap<String, String>> {
        let document = tables::parse(path, text)?;
        Ok(self.layout(&document)?.registered(&document))
    }

    /// Returns the runtime that a file of containerd or CRI-O makes the default.
    pub(crate) fn default_runtime(self, path: &Path, text: &str) -> Result<Option<String>> {
        let document = tables::parse(path, text)?;
        let layout = self.layout(&document)?;
        Ok(layout.default_runtime(&document).map(Into::into))
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

/// A file that was opened to be edited, and its new text; None if it is to be removed. A file keeps its mode and owner, a
/// symlink to it stays, and a reader sees the old text or the new one.
pub(crate) struct Edit {
    file: HostFile,
    pub(crate) after: Option<String>,
}

impl Edit {
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns true if there is a change.
    pub(crate) fn is_needed(&self) -> bool {
        self.file.text() != self.after.as_deref()
    }

    fn is_removal(&self) -> bool {
        self.is_needed() && self.after.is_none()
    }

    /// Writes or removes the file if there is a change; returns its path then.
    pub(crate) fn carry_out(self) -> Result<Option<PathBuf>> {
        let path = self.is_needed().then(|| self.path().to_owned());
        match self.after {
            _ if path.is_none() => {}
            Some(text) => self.file.replace(&text, MODE)?,
            None => self.file.remove()?,
        }
        Ok(path)
    }
}

/// Mode of new files, less the umask.
const MODE: u32 = 0o644;

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
    let texts = match engine {
        Engine::Docker => {
            let text = docker::add(files.path, files.text, &wanted.runtime)?;
            vec![Text::new(files.path, text)]
        }
        Engine::Containerd => containerd::add(files, &wanted.runtime)?,
        Engine::Crio => vec![crio::add(files, &wanted.runtime)?],
    };
    let mut files: Vec<HostFile> = [config].into_iter().chain(drop_in).collect();
    let mut edits = Vec::new();
    for Text { path, text } in texts {
        if let Some(place) = files.iter().position(|file| file.path() == path) {
            let (file, after) = (files.swap_remove(place), Some(text));
            edits.push(Edit { file, after });
        }
    }
    let mut drop_ins = edits
        .iter()
        .filter(|edit| wanted.drop_in.as_deref() == Some(edit.path()));
    if let Some(edit) = drop_ins.next() {
        let (path, name) = (edit.path(), &wanted.runtime.name);
        let is_default = |text: Option<&str>| {
            let default = engine.default_runtime(path, text.unwrap_or_default());
            default.map(|default| default.as_ref() == Some(name))
        };
        if is_default(edit.file.text())? && !is_default(edit.after.as_deref())? {
            info!(
                "{name} is no longer the default runtime of {}: --nvidia-set-as-default was not given",
                path.display()
            );
        }
    }
    Ok(edits)
}

/// The edits that remove runtimes.
#[derive(Default)]
pub(crate) struct Removal {
    pub(crate) edits: Vec<Edit>,
    /// The names of the runtimes.
    pub(crate) names: Vec<String>,
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
    let mut others = engine.others(config, main.text().unwrap_or_default(), drop_in)?;
    if let Some(drop_in) = drop_in.filter(|path| !others.iter().any(|known| known == path)) {
        others.push(drop_in.into());
    }
    let others = others.iter().map(|path| open(path));
    let mut removal = Removal::default();
    for file in std::iter::once(Ok(main)).chain(others) {
        let file = file?;
        let mut after = file.text().map(str::to_owned);
        if let Some(text) = after.as_ref().filter(|text| !text.trim().is_empty()) {
            let path = file.path();
            let is_removed = |name: &str, program: &str| is_removed(path, name, program);
            let removed = engine.remove(path, text, &is_removed)?;
            removal.had_default |= removed.had_default;
            removal.names.extend(removed.names);
            after = removed.text;
        }
        removal.edits.push(Edit { file, after });
    }
    if engine == Engine::Containerd {
        remove_copies(&mut removal.edits)?;
        remove_import(&mut removal.edits)?;
    }
    Ok(removal)
}

/// Removes drop-ins that lost a runtime and now only repeat other files.
fn remove_copies(edits: &mut [Edit]) -> Result<()> {
    for index in 1..edits.len() {
        let (before, rest) = edits.split_at_mut(index);
        let Some((edit, after)) = rest.split_first_mut() else {
            continue;
        };
        if let Some(text) = edit.after.as_deref().filter(|_| edit.is_needed()) {
            let others = before.iter().chain(after.iter());
            let others: Vec<_> = others.filter_map(|edit| edit.after.as_deref()).collect();
            if containerd::is_copy(edit.path(), text, &others)? {
                edit.after = None;
            }
        }
    }
    Ok(())
}

/// Removes the import of drop-ins that go, from the main file, unless it imports another file too.
fn remove_import(edits: &mut [Edit]) -> Result<()> {
    let Some((main, others)) = edits.split_first_mut() else {
        return Ok(());
    };
    for edit in others.iter().filter(|edit| edit.is_removal()) {
        let pattern = containerd::pattern_for(edit.path());
        let goes = |found: &PathBuf| others.iter().any(|e| e.path() == found && e.is_removal());
        let mut stays = matching(Path::new(&pattern)).into_iter();
        if let Some(other) = stays.find(|found| !goes(found)) {
            let (config, other) = (main.path().display(), other.display());
            info!("{config} still imports {pattern}, since {other} needs that");
        } else if let Some(text) = &main.after {
            let text = containerd::without_import(main.path(), text, edit.path())?;
            main.after = Some(text);
        }
    }
    Ok(())
}
