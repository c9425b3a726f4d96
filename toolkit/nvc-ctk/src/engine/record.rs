//! Stores the original text of a changed configuration file: in an extended attribute of the file, or, if that does not
//! fit, in a file below [`DIRECTORY`].

use std::fs;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};

use fnv::FnvHasher;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::HostFile;
use serde_json::{Value, json};

/// Directory of the records.
pub(crate) const DIRECTORY: &str = "/var/lib/nvidia-container-toolkit/undo";

/// A file's original text, and a hash of our version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Original text; None if there was no file.
    pub(crate) before: Option<String>,
    /// The [`mark`] of the text after our change.
    pub(crate) after: String,
    /// The runtimes that were added to the original text since.
    pub(crate) names: Vec<String>,
}

impl Record {
    /// Returns the record in its stored form.
    pub(crate) fn to_text(&self) -> String {
        json!({ "before": self.before, "after": self.after, "names": self.names }).to_string()
    }

    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let member = |key: &str| value.get(key).and_then(Value::as_str).map(String::from);
        let names = value.get("names").and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        Some(Self {
            before: member("before"),
            after: member("after")?,
            names: names.map(Into::into).collect(),
        })
    }
}

/// Returns a short hash of a text (FNV-1a); forging it has no benefit.
pub(crate) fn mark(text: &str) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    format!("{}:{:016x}", text.len(), hasher.finish())
}

/// Reads the record of a file.
pub(crate) fn load(directory: &Path, of: &HostFile) -> Result<Option<Record>> {
    if let Some(record) = of.attribute().and_then(|text| Record::parse(&text)) {
        return Ok(Some(record));
    }
    let file = file_of(directory, of.path());
    let stored = HostFile::open(&file)?;
    let Some(text) = stored.text() else {
        return Ok(None);
    };
    Record::parse(text).map(Some).ok_or_else(|| {
        let text = format!("{} is not a record of nvidia-ctk", file.display());
        Error::new(ErrorKind::Malformed, text).hint("remove it; then only our keys are undone")
    })
}

/// Writes the record of a file below a directory, or removes it.
pub(crate) fn store(directory: &Path, path: &Path, record: Option<&Record>) -> Result<()> {
    let file = HostFile::open(&file_of(directory, path))?;
    match record {
        // Configurations can contain secrets (registry credentials), so a new record is readable only by root.
        Some(record) => file.replace(&record.to_text(), 0o600, None).map(drop),
        None => {
            file.remove()?;
            tidy(directory);
            Ok(())
        }
    }
}

/// Removes a directory of ours and the one above it, if they are empty.
pub(crate) fn tidy(directory: &Path) {
    for directory in directory.ancestors().take(2) {
        if fs::remove_dir(directory).is_err() {
            break; // it has other files, or is missing
        }
    }
}

fn file_of(directory: &Path, path: &Path) -> PathBuf {
    let name = path
        .to_string_lossy()
        .replace('%', "%25")
        .replace('/', "%2F");
    directory.join(name)
}
