//! Edits dockerd's `daemon.json` as text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::{ParseOptions, json};
use libnvc::{Error, ErrorKind};
use serde::Deserialize;
use serde_json::Value;

use super::{IsRemoved, Removed, Runtime};
use crate::ask::version_in;

type Result<T, E = Error> = std::result::Result<T, E>;

/// dockerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/docker/daemon.json";

/// A new file, with upstream's indent of four blanks.
const NEW: &str = "{\n    \"runtimes\": {}\n}\n";

/// Returns a text with the runtime; `text` is None if there is no file. What is right already stays as it is written.
pub(crate) fn add(path: &Path, text: Option<&str>, runtime: &Runtime) -> Result<String> {
    let plain = text.map_or(NEW, without_mark);
    let document = parse(path, plain)?;
    let root = root_object(path, &document)?;
    let now: Value = serde_json::from_str(plain).unwrap_or_default();
    let (name, program) = (runtime.name.as_str(), runtime.path.as_str());
    let runtimes = object(path, &root, "runtimes")?;
    if now["runtimes"][name] != serde_json::json!({ "path": program, "args": [] }) {
        set(&runtimes, name, json!({ "path": program, "args": [] }));
    }
    if runtime.set_as_default && now["default-runtime"] != name {
        set(&root, "default-runtime", CstInputValue::from(name));
    }
    if runtime.enable_cdi && now["features"]["cdi"] != true {
        set(&object(path, &root, "features")?, "cdi", json!(true));
    }
    checked(path, &document)
}

/// Removes runtimes from a text, and a default runtime that is one of them. `features.cdi` stays: CDI names of others may
/// need it.
pub(crate) fn remove(path: &Path, text: &str, is_removed: &IsRemoved<'_>) -> Result<Removed> {
    let text = without_mark(text);
    let document = parse(path, text)?;
    let root = root_object(path, &document)?;
    // Whatever else is there, also what dockerd refuses.
    let now: Value = serde_json::from_str(text).unwrap_or_default();
    let runtimes = now["runtimes"].as_object().into_iter().flatten();
    let is_ours = |name: &str, entry: &Value| {
        let program = entry["path"].as_str().unwrap_or_default();
        is_removed(name, program)
    };
    let ours = runtimes.filter(|(name, entry)| is_ours(name, entry));
    let names: Vec<String> = ours.map(|(name, _)| name.clone()).collect();
    if let Some(runtimes) = root.object_value("runtimes").filter(|_| !names.is_empty()) {
        names.iter().for_each(|name| delete(&runtimes, name));
        if runtimes.properties().is_empty() {
            delete(&root, "runtimes");
        }
    }
    let had_default = names.iter().any(|name| now["default-runtime"] == **name);
    if had_default {
        delete(&root, "default-runtime");
    }
    // An empty object is equivalent to no file.
    let is_empty = root.properties().is_empty() && !names.is_empty();
    Ok(Removed {
        text: (!is_empty).then(|| checked(path, &document)).transpose()?,
        names,
        had_default,
    })
}

/// Returns a text that makes a runtime the default; `text` is None if there is no file.
pub(crate) fn with_default(path: &Path, text: Option<&str>, name: &str) -> Result<String> {
    let document = parse(path, without_mark(text.unwrap_or_default()))?;
    let root = root_object(path, &document)?;
    set(&root, "default-runtime", CstInputValue::from(name));
    checked(path, &document)
}

/// Returns an edited document as text, after a check that dockerd can read it.
fn checked(path: &Path, document: &CstRootNode) -> Result<String> {
    let after = document.to_string();
    parse(path, &after).map(|_| after)
}

/// The settings of `daemon.json` that matter here. For dockerd, null is what is not there.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Settings {
    runtimes: Option<Runtimes>,
    pub(crate) default_runtime: Option<String>,
    features: Option<BTreeMap<String, Option<bool>>>,
}

/// Runtimes by name.
type Runtimes = BTreeMap<String, Option<Entry>>;

/// A runtime of dockerd's.
#[derive(Debug, Deserialize)]
struct Entry {
    /// Its program; empty if it is a shim of containerd's.
    path: Option<String>,
}

/// Returns the program of an entry.
fn program(entry: Option<&Entry>) -> &str {
    entry
        .and_then(|entry| entry.path.as_deref())
        .unwrap_or_default()
}

impl Settings {
    pub(crate) fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(without_mark(text))
    }

    /// Returns the runtimes by name.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.runtimes.iter().flatten();
        all.map(|(name, entry)| (name.as_str(), program(entry.as_ref())))
    }

    /// Returns true if docker resolves CDI names.
    pub(crate) fn enables_cdi(&self) -> bool {
        let mut features = self.features.iter().flatten();
        features.any(|(name, is_on)| name == "cdi" && *is_on == Some(true))
    }
}

/// What a running dockerd says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Daemon {
    server_version: String,
    server_errors: Option<Vec<String>>,
    runtimes: Option<Runtimes>,
    pub(crate) default_runtime: String,
    /// Its directories of specifications; none if CDI is off.
    #[serde(rename = "CDISpecDirs")]
    directories: Option<Vec<PathBuf>>,
}

/// The arguments of docker's command that asks it.
pub(crate) const INFO: [&str; 3] = ["info", "--format", "{{json .}}"];

impl Daemon {
    /// Reads the answer; None if it is another program's, such as podman's.
    pub(crate) fn parse(answer: &str) -> Result<Option<Self>, String> {
        let answer: Self = serde_json::from_str(answer).map_err(|error| error.to_string())?;
        if let Some(error) = answer.server_errors.iter().flatten().next() {
            return Err(error.clone());
        }
        Ok(answer.version().is_some().then_some(answer))
    }

    pub(crate) fn runtime(&self, name: &str) -> Option<&str> {
        let entry = self.runtimes.as_ref()?.get(name)?;
        Some(program(entry.as_ref()))
    }

    /// Returns true if it has a runtime of NVIDIA's.
    pub(crate) fn has_nvidia(&self) -> bool {
        let mut names = self.runtimes.iter().flatten().map(|(name, _)| name);
        names.any(|name| name.starts_with("nvidia"))
    }

    pub(crate) fn version(&self) -> Option<Vec<u32>> {
        version_in(&self.server_version)
    }

    pub(crate) fn directories(&self) -> &[PathBuf] {
        self.directories.as_deref().unwrap_or_default()
    }
}

fn set(object: &CstObject, key: &str, value: CstInputValue) {
    match object.get(key) {
        Some(property) => property.set_value(value),
        None => {
            object.append(key, value);
        }
    }
}

fn delete(object: &CstObject, key: &str) {
    if let Some(property) = object.get(key) {
        property.remove();
    }
}

/// Returns an object member; creates it if it is missing, or null as for dockerd.
fn object(path: &Path, root: &CstObject, key: &str) -> Result<CstObject> {
    let value = root.get(key).and_then(|property| property.value());
    if value.is_some_and(|value| value.as_null_keyword().is_some()) {
        set(root, key, json!({}));
    }
    root.object_value_or_create(key).ok_or_else(|| {
        let text = format!("{}: {key} is not an object", path.display());
        Error::new(ErrorKind::Malformed, text)
    })
}

fn root_object(path: &Path, document: &CstRootNode) -> Result<CstObject> {
    document.object_value().ok_or_else(|| {
        let text = format!("{} does not contain an object", path.display());
        Error::new(ErrorKind::Malformed, text)
    })
}

/// Parses what dockerd accepts: JSON without comments and without duplicate keys.
fn parse(path: &Path, text: &str) -> Result<CstRootNode> {
    let malformed = |error: String| {
        let text = format!("{}: {error}", path.display());
        Error::new(ErrorKind::Malformed, text)
    };
    nvc_oci::unique::parse(text).map_err(|error| {
        let error = malformed(error.message());
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        if text.lines().any(is_comment) {
            return error.hint("dockerd takes no comments: remove the lines that begin with //");
        }
        error
    })?;
    let options = ParseOptions {
        allow_comments: false,
        allow_trailing_commas: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &options).map_err(|error| malformed(error.to_string()))
}

/// Returns a text without its byte order mark, which dockerd skips; an empty one it takes for an empty object.
fn without_mark(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() { "{}\n" } else { text }
}
