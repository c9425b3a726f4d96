//! Edits dockerd's `daemon.json` as text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::json;
use jsonc_parser::{JsonValue, ParseOptions, parse_to_value};
use libnvc::{Error, ErrorKind};
use serde_json::Value;

use super::change::Change;
use super::{IsRemoved, Removed, Runtime};
use crate::ask::version_in;

type Result<T, E = Error> = std::result::Result<T, E>;

/// dockerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/docker/daemon.json";

/// A new file, with upstream's indent of four blanks.
const NEW: &str = "{\n    \"runtimes\": {}\n}\n";

/// Registers the runtime. `text` is the file's content, None if it is missing.
pub(crate) fn add(path: &Path, text: Option<&str>, runtime: &Runtime) -> Result<Change> {
    let plain = text.map_or(NEW, without_mark);
    let document = parse(path, plain)?;
    let root = root_object(path, &document)?;
    let entry = json!({ "path": (runtime.path.as_str()), "args": [] });
    let runtimes = object(path, &root, "runtimes")?;
    if !is_registered(&runtimes, runtime) {
        set(&runtimes, &runtime.name, entry);
    }
    if runtime.set_as_default && string(&root, "default-runtime").as_deref() != Some(&runtime.name)
    {
        set(
            &root,
            "default-runtime",
            CstInputValue::from(runtime.name.as_str()),
        );
    }
    if runtime.enable_cdi {
        let features = object(path, &root, "features")?;
        let on = features.get("cdi").and_then(|property| property.value());
        if !on.is_some_and(|value| value.as_boolean_lit().is_some_and(|value| value.value())) {
            set(&features, "cdi", json!(true));
        }
    }
    let names = std::slice::from_ref(&runtime.name);
    let after = checked(path, plain, &document, names)?;
    Ok(Change {
        path: path.into(),
        before: text.map(Into::into),
        after: Some(after),
    })
}

/// Removes runtimes from a text, and a default runtime that is one of them. `features.cdi` stays: CDI names of others may
/// need it.
pub(crate) fn remove(path: &Path, text: &str, is_removed: &IsRemoved<'_>) -> Result<Removed> {
    let text = without_mark(text);
    let document = parse(path, text)?;
    let root = root_object(path, &document)?;
    let mut names = registered(text);
    names.retain(|(name, program)| is_removed(name, program));
    let names: Vec<String> = names.into_iter().map(|(name, _)| name).collect();
    if let Some(runtimes) = root.object_value("runtimes").filter(|_| !names.is_empty()) {
        names.iter().for_each(|name| delete(&runtimes, name));
        if runtimes.properties().is_empty() {
            delete(&root, "runtimes");
        }
    }
    let default = string(&root, "default-runtime");
    let had_default = default.is_some_and(|default| names.contains(&default));
    if had_default {
        delete(&root, "default-runtime");
    }
    // An empty object is equivalent to no file.
    let is_empty = root.properties().is_empty() && !names.is_empty();
    let text = (!is_empty)
        .then(|| checked(path, text, &document, &names))
        .transpose()?;
    Ok(Removed {
        text,
        names,
        had_default,
    })
}

/// Returns a text that makes a runtime the default; `text` is None if there is no file.
pub(crate) fn with_default(path: &Path, text: Option<&str>, name: &str) -> Result<String> {
    let text = text.unwrap_or("{}\n");
    let document = parse(path, text)?;
    let root = root_object(path, &document)?;
    set(&root, "default-runtime", CstInputValue::from(name));
    checked(path, text, &document, &[])
}

/// Returns an edited document as text, after a check that dockerd can read it, and that no value differs that does not
/// belong to the runtimes of these names.
fn checked(path: &Path, before: &str, document: &CstRootNode, names: &[String]) -> Result<String> {
    let after = document.to_string();
    parse(path, &after)?;
    let mut changed = vec![vec!["default-runtime"], vec!["features", "cdi"]];
    changed.extend(names.iter().map(|name| vec!["runtimes", name.as_str()]));
    if others(before, &changed) == others(&after, &changed) {
        return Ok(after);
    }
    let text = format!(
        "{}: the file cannot be edited: another value would change",
        path.display()
    );
    Err(Error::new(ErrorKind::Malformed, text).hint("edit it by hand"))
}

/// Returns the values that are not below one of the `changed` key paths, without empty objects and nulls, which are the
/// same to dockerd.
fn others<'t>(text: &'t str, changed: &[Vec<&str>]) -> BTreeMap<Vec<String>, JsonValue<'t>> {
    let mut found = BTreeMap::new();
    let value = parse_to_value(text, &ParseOptions::default());
    if let Ok(Some(value)) = value {
        flatten(value, Vec::new(), &mut found);
    }
    let is_below = |path: &[String], above: &[&str]| {
        path.len() >= above.len() && path.iter().zip(above).all(|(one, other)| one == other)
    };
    found.retain(|path, _| !changed.iter().any(|above| is_below(path, above)));
    found
}

fn flatten<'t>(
    value: JsonValue<'t>,
    path: Vec<String>,
    found: &mut BTreeMap<Vec<String>, JsonValue<'t>>,
) {
    match value {
        JsonValue::Object(object) => {
            for (key, value) in object {
                flatten(value, [&path[..], &[key.to_string()]].concat(), found);
            }
        }
        JsonValue::Null => {}
        value => drop(found.insert(path, value)),
    }
}

/// Returns the runtimes that a text registers, with their programs.
pub(crate) fn registered(text: &str) -> Vec<(String, String)> {
    let value: Value = serde_json::from_str(without_mark(text)).unwrap_or_default();
    let runtimes = runtimes_of(value.get("runtimes"));
    runtimes
        .map(|(name, program)| (name.into(), program.into()))
        .collect()
}

/// Returns the runtimes of an object, with their programs.
pub(crate) fn runtimes_of(object: Option<&Value>) -> impl Iterator<Item = (&str, &str)> {
    let runtimes = object.and_then(Value::as_object).into_iter().flatten();
    runtimes.map(|(name, entry)| {
        let program = entry.get("path").and_then(Value::as_str);
        (name.as_str(), program.unwrap_or_default())
    })
}

/// What a running dockerd says.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) version: Vec<u32>,
    /// Programs of its runtimes, by name.
    pub(crate) runtimes: BTreeMap<String, String>,
    pub(crate) default: String,
    /// Its directories of specifications; empty if CDI is off.
    pub(crate) directories: Vec<PathBuf>,
}

/// The arguments of docker's command that asks it.
pub(crate) const INFO: [&str; 3] = ["info", "--format", "{{json .}}"];

impl Daemon {
    /// Reads the answer; None if it is another program's, such as podman's.
    pub(crate) fn parse(answer: &str) -> Result<Option<Self>, String> {
        let value: Value = serde_json::from_str(answer).map_err(|error| error.to_string())?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let list = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        if let Some(error) = list("ServerErrors").next() {
            return Err(error.as_str().unwrap_or("ServerErrors").into());
        }
        let Some(version) = version_in(text("ServerVersion")) else {
            return Ok(None);
        };
        let runtimes = runtimes_of(value.get("Runtimes"));
        Ok(Some(Self {
            version,
            runtimes: runtimes
                .map(|(name, program)| (name.into(), program.into()))
                .collect(),
            default: text("DefaultRuntime").into(),
            directories: list("CDISpecDirs")
                .filter_map(|path| Some(path.as_str()?.into()))
                .collect(),
        }))
    }
}

/// Returns true if a text lets docker resolve CDI names.
pub(crate) fn enables_cdi(text: &str) -> bool {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let feature = value
        .as_ref()
        .and_then(|value| value.get("features")?.get("cdi")?.as_bool());
    feature == Some(true)
}

fn is_registered(runtimes: &CstObject, runtime: &Runtime) -> bool {
    let Some(entry) = runtimes.object_value(&runtime.name) else {
        return false;
    };
    let args = entry.array_value("args");
    let no_args = args.is_some_and(|args| args.elements().is_empty());
    no_args
        && entry.properties().len() == 2
        && string(&entry, "path").as_deref() == Some(&runtime.path)
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

fn string(object: &CstObject, key: &str) -> Option<String> {
    object
        .get(key)?
        .value()?
        .as_string_lit()?
        .decoded_value()
        .ok()
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
    // As dockerd.
    let text = if text.trim().is_empty() { "{}" } else { text };
    nvc_cdi::check_json(text).map_err(|error| {
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

/// Returns a text without its byte order mark, which dockerd skips.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_that_loses_or_breaks_something_is_refused() {
        let path = Path::new("d");
        let of = |text: &str| CstRootNode::parse(text, &ParseOptions::default()).unwrap();
        let before = "{\"a\": [1], \"b\": {\"c\": 2.50}, \"features\": {\"x\": 1}}";
        let names = ["nvidia".to_owned()];
        let checked = |after: &str| checked(path, before, &of(after), &names);
        for same in [
            before.to_owned(),
            before.replace("\"x\": 1", "\"x\": 1, \"cdi\": true"),
            before.replace('}', " }"),
            before.replace("\"a\"", "\"runtimes\": {\"nvidia\": {}}, \"a\""),
        ] {
            assert_eq!(checked(&same).unwrap(), same);
        }
        for other in [
            before.replace("2.50", "2.5"),
            before.replace("[1]", "[1, 2]"),
            before.replace("\"x\": 1", ""),
            before.replace("\"a\"", "\"runtimes\": {\"kata\": 1}, \"a\""),
            before.replace("\"a\"", "\"a\": [1], \"a\""),
            before.replace("[1]", "[1,]"),
        ] {
            assert!(checked(&other).is_err(), "{other}");
        }
    }
}
