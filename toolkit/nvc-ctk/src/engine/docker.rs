//! Edits dockerd's `daemon.json` as text.

use std::collections::BTreeMap;
use std::path::Path;

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::json;
use jsonc_parser::{JsonValue, ParseOptions, parse_to_value};
use libnvc::{Error, ErrorKind, Result};

use super::Runtime;
use super::change::Change;
use super::undo::Removal;

/// dockerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/docker/daemon.json";

/// A new file, with upstream's indent of four blanks.
const NEW: &str = "{\n    \"runtimes\": {}\n}\n";

/// Registers the runtime. `text` is the file's content, None if it is missing.
pub(crate) fn add(path: &Path, text: Option<&str>, runtime: &Runtime) -> Result<Change> {
    let document = parse(path, text.unwrap_or(NEW))?;
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
    let after = checked(path, text.unwrap_or(NEW), &document, &runtime.name)?;
    Ok(Change {
        path: path.into(),
        before: text.map(Into::into),
        after: Some(after),
    })
}

/// Removes the runtime from a text; the keys that [`add`] sets get their values from the former text, if available.
pub(crate) fn restore(path: &Path, text: &str, removal: Removal<'_>) -> Result<Option<String>> {
    let Removal {
        name,
        before,
        others_stay,
    } = removal;
    let document = parse(path, text)?;
    let root = root_object(path, &document)?;
    let old = before.map(|text| parse(path, text)).transpose()?;
    let old = old.as_ref().and_then(CstRootNode::object_value);
    let old_of = |key: &str| old.as_ref().and_then(|old| old.object_value(key));
    if let Some(runtimes) = root.object_value("runtimes") {
        put_back(&runtimes, old_of("runtimes").as_ref(), name);
        if runtimes.properties().is_empty() && old_of("runtimes").is_none() {
            remove(&root, "runtimes");
        }
    }
    if string(&root, "default-runtime").as_deref() == Some(name) {
        put_back(&root, old.as_ref(), "default-runtime");
    }
    let features = root.object_value("features").filter(|_| !others_stay);
    if let (Some(features), Some(_)) = (features, &old) {
        put_back(&features, old_of("features").as_ref(), "cdi");
        if features.properties().is_empty() && old_of("features").is_none() {
            remove(&root, "features");
        }
    }
    // An empty object is equivalent to no file.
    let is_empty = root.properties().is_empty();
    (!is_empty)
        .then(|| checked(path, text, &document, name))
        .transpose()
}

/// Returns an edited document as text, after a check that dockerd can read it, and that no value differs that does not
/// belong to the runtime `name`.
fn checked(path: &Path, before: &str, document: &CstRootNode, name: &str) -> Result<String> {
    let after = document.to_string();
    parse(path, &after)?;
    let changed = [
        vec!["runtimes", name],
        vec!["default-runtime"],
        vec!["features", "cdi"],
    ];
    if others(before, &changed) == others(&after, &changed) {
        return Ok(after);
    }
    let text = format!(
        "{}: the file cannot be edited: another value would change",
        path.display()
    );
    Err(Error::new(ErrorKind::Malformed, text).hint("edit it by hand"))
}

/// Returns the values that are not below one of the `changed` key paths, without empty objects.
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
        value => drop(found.insert(path, value)),
    }
}

/// Returns the program of a registered runtime.
pub(crate) fn program(path: &Path, text: &str, name: &str) -> Result<Option<String>> {
    let document = parse(path, text)?;
    let runtimes = root_object(path, &document)?.object_value("runtimes");
    let entry = runtimes.and_then(|runtimes| runtimes.object_value(name));
    Ok(entry.map(|entry| string(&entry, "path").unwrap_or_default()))
}

/// Returns the names of the runtimes with a program.
pub(crate) fn names(text: &str, program: &str) -> Vec<String> {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let runtimes = value.get("runtimes").and_then(|value| value.as_object());
    let is_it = |entry: &serde_json::Value| {
        entry.get("path").and_then(|path| path.as_str()) == Some(program)
    };
    let found = runtimes.into_iter().flatten();
    found
        .filter(|(_, entry)| is_it(entry))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Returns true if a text lets docker resolve CDI names.
pub(crate) fn enables_cdi(text: &str) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
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

/// Sets a key to the value it has in `old`, or removes it.
fn put_back(object: &CstObject, old: Option<&CstObject>, key: &str) {
    let value = old
        .and_then(|old| old.get(key)?.value())
        .and_then(|value| serde_json::from_str(&value.to_string()).ok());
    match value {
        Some(value) => set(object, key, input(value)),
        None => remove(object, key),
    }
}

fn input(value: serde_json::Value) -> CstInputValue {
    use serde_json::Value;
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value),
        Value::Array(items) => CstInputValue::Array(items.into_iter().map(input).collect()),
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| (key, input(value)));
            CstInputValue::Object(members.collect())
        }
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

fn remove(object: &CstObject, key: &str) {
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

/// Returns an object member; creates it if missing.
fn object(path: &Path, root: &CstObject, key: &str) -> Result<CstObject> {
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
    if text.trim().is_empty() {
        let error = malformed("the file is empty".into());
        return Err(error.hint("write {} to it, or remove it"));
    }
    nvc_cdi::check_json(text).map_err(|error| malformed(error.message()))?;
    let options = ParseOptions {
        allow_comments: false,
        allow_trailing_commas: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &options).map_err(|error| malformed(error.to_string()))
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
        let checked = |after: &str| checked(path, before, &of(after), "nvidia");
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
