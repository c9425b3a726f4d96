//! Notes what `runtime configure` registered, so that removing the runtime's package can undo exactly that.
//!
//! A file each, below [`DIRECTORY`]. Only root's calls are noted: a package's script edits nothing in directories of
//! users.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::{HostFile, system};
use serde_json::{Value, json};

use super::edits::{Engine, Registration};
use super::{Runtime, containerd, record};

/// Directory of the notes.
pub(crate) const DIRECTORY: &str = "/var/lib/nvidia-container-toolkit/registrations";

/// Something that was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// The engine; None: a file in a hooks directory.
    pub(crate) engine: Option<Engine>,
    /// The engine's file, or the hook file.
    pub(crate) config: PathBuf,
    pub(crate) drop_in: Option<PathBuf>,
    /// The runtime's name; empty for a hook file.
    pub(crate) name: String,
    /// The program as the file names it.
    pub(crate) program: String,
    /// The package whose script registered it; None: the administrator.
    pub(crate) package: Option<String>,
}

impl Note {
    /// Returns the note of a registration.
    pub(crate) fn of(wanted: &Registration, package: Option<&str>) -> Self {
        Self {
            engine: Some(wanted.engine),
            config: absolute(&wanted.config),
            drop_in: wanted.drop_in.clone(),
            name: wanted.runtime.name.clone(),
            program: wanted.runtime.path.clone(),
            package: package.map(Into::into),
        }
    }

    /// Returns the note of a hook file.
    pub(crate) fn of_hook(path: &Path, program: &str) -> Self {
        Self {
            engine: None,
            config: absolute(path),
            drop_in: None,
            name: String::new(),
            program: program.into(),
            package: None,
        }
    }

    /// Returns what was registered; None for a hook file.
    pub(crate) fn registration(&self) -> Option<Registration> {
        Some(Registration {
            engine: self.engine?,
            config: self.config.clone(),
            drop_in: self.drop_in.clone(),
            runtime: Runtime {
                name: self.name.clone(),
                path: self.program.clone(),
                set_as_default: false,
                enable_cdi: false,
            },
            drops_default: false,
        })
    }

    fn text(&self) -> String {
        let note = json!({
            "engine": self.engine.map_or("oci-hook", Engine::name),
            "config": self.config.to_string_lossy(),
            "drop-in": self.drop_in.as_ref().map(|path| path.to_string_lossy()),
            "name": self.name,
            "program": self.program,
            "package": self.package,
        });
        format!("{note}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let member = |key: &str| value.get(key).and_then(Value::as_str).map(String::from);
        let engine = member("engine")?;
        let known = Engine::ALL.into_iter().find(|known| known.name() == engine);
        (known.is_some() || engine == "oci-hook").then_some(())?;
        Some(Self {
            engine: known,
            config: member("config")?.into(),
            drop_in: member("drop-in").map(Into::into),
            name: member("name")?,
            program: member("program")?,
            package: member("package"),
        })
    }

    /// Returns the note's file: one for an engine's files and a runtime's name.
    fn file(&self, directory: &Path) -> PathBuf {
        let engine = self.engine.map_or("oci-hook", Engine::name);
        let config = encoded(&self.config.to_string_lossy());
        let mut name = format!("{engine}:{config}:{}", encoded(&self.name));
        // Two paths could exceed the length of a name.
        if self.drop_in.as_deref() != self.engine.and_then(Engine::drop_in).map(Path::new) {
            let drop_in = self.drop_in.as_deref().unwrap_or(Path::new(""));
            name += &format!(":{}", record::mark(&drop_in.to_string_lossy()));
        }
        directory.join(name)
    }

    /// Writes the note, in place of an earlier one of the same registration.
    pub(crate) fn store(&self, directory: &Path) -> Result<()> {
        let file = HostFile::open(&self.file(directory))?;
        file.replace(&self.text(), 0o644, None).map(drop)
    }

    /// Removes the note, and the directory if it was the last one.
    pub(crate) fn forget(&self, directory: &Path) -> Result<()> {
        HostFile::open(&self.file(directory))?.remove()?;
        record::tidy(directory);
        Ok(())
    }

    /// Returns the stored note of the same registration.
    pub(crate) fn stored(&self, directory: &Path) -> Result<Option<Self>> {
        read(&self.file(directory))
    }
}

/// Returns true if another drop-in is noted that needs the same import in the same file of containerd.
pub(crate) fn shares_import(directory: &Path, wanted: &Registration) -> bool {
    let (notes, _) = all(directory);
    let own = Note::of(wanted, None);
    notes.iter().any(|note| {
        let parts = (own.drop_in.as_deref(), note.drop_in.as_deref());
        let is_shared = matches!(parts, (Some(own), Some(other)) if own != other && containerd::share_import(own, other));
        is_shared && note.engine == Some(Engine::Containerd) && note.config == own.config
    })
}

/// Returns all notes, sorted, and why some cannot be read.
pub(crate) fn all(directory: &Path) -> (Vec<Note>, Vec<Error>) {
    let mut paths: Vec<PathBuf> = match fs::read_dir(directory) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == IoKind::NotFound => Vec::new(),
        Err(error) => return (Vec::new(), vec![system("open failed", directory, &error)]),
    };
    paths.sort();
    let (mut notes, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match read(&path) {
            Ok(note) => notes.extend(note),
            Err(error) => errors.push(error),
        }
    }
    (notes, errors)
}

fn read(path: &Path) -> Result<Option<Note>> {
    let file = HostFile::open(path)?;
    let Some(text) = file.text() else {
        return Ok(None);
    };
    Note::parse(text).map(Some).ok_or_else(|| {
        let text = format!("{} is not a note of nvidia-ctk", path.display());
        Error::new(ErrorKind::Malformed, text).hint("remove it")
    })
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

fn encoded(text: &str) -> String {
    text.replace('%', "%25")
        .replace('/', "%2F")
        .replace(':', "%3A")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn note(engine: Option<Engine>, name: &str) -> Note {
        Note {
            engine,
            config: "/etc/x:y/%.toml".into(),
            drop_in: Some("/etc/x/conf.d/99.toml".into()),
            name: name.into(),
            program: "/usr/bin/nvidia-container-runtime".into(),
            package: Some("p".into()),
        }
    }

    #[test]
    fn notes_come_back() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("notes");
        assert_eq!(all(&directory).0, []);
        let engines = [
            None,
            Some(Engine::Docker),
            Some(Engine::Containerd),
            Some(Engine::Crio),
        ];
        for (count, engine) in engines.into_iter().enumerate() {
            let one = note(engine, "a/../b");
            assert_eq!(one.stored(&directory).unwrap(), None);
            one.store(&directory).unwrap();
            let later = Note {
                package: None,
                ..one.clone()
            };
            later.store(&directory).unwrap();
            assert_eq!(one.stored(&directory).unwrap(), Some(later.clone()));
            let (notes, errors) = all(&directory);
            assert!(errors.is_empty() && notes.contains(&later), "{notes:?}");
            assert_eq!(notes.len(), count + 1);
        }
        note(None, "a/../b").forget(&directory).unwrap();
        assert_eq!(all(&directory).0.len(), 3);
        fs::write(directory.join("x"), "{}").unwrap();
        assert_eq!(all(&directory).1.len(), 1);
    }
}
