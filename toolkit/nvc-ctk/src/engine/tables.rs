//! Accesses TOML documents by key paths.

use std::collections::BTreeMap;
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use crate::toml_values;

/// Parses a document; the error has the line and column.
pub(super) fn parse(path: &Path, text: &str) -> Result<DocumentMut> {
    toml_values::parse(text)
        .map_err(|reason| Error::fault(ErrorKind::Malformed, path.display(), reason))
}

/// Returns an edited document as text, after a check that only the values at the `changed` key paths differ.
pub(super) fn checked(
    path: &Path,
    before: &DocumentMut,
    document: &DocumentMut,
    changed: &[Vec<&str>],
) -> Result<String> {
    let after = document.to_string();
    toml_values::check(before, &after, changed)
        .map_err(|error| error.context(path.display().to_string()))?;
    Ok(after)
}

/// Returns the item at a key path.
pub(super) fn get<'a>(item: &'a Item, keys: &[&str]) -> Option<&'a Item> {
    keys.iter()
        .try_fold(item, |item, key| item.as_table_like()?.get(key))
}

/// Returns the string at a key path.
pub(super) fn text<'a>(item: &'a Item, keys: &[&str]) -> Option<&'a str> {
    get(item, keys)?.as_str()
}

/// Returns the item at a key path in a table.
pub(super) fn get_in<'a>(table: &'a Table, keys: &[&str]) -> Option<&'a Item> {
    let (key, rest) = keys.split_first()?;
    get(table.get(key)?, rest)
}

/// Returns the string at a key path in a table.
pub(super) fn text_in<'a>(table: &'a Table, keys: &[&str]) -> Option<&'a str> {
    get_in(table, keys)?.as_str()
}

/// Returns the runtimes in the table at a key path, each with the program at a key path in its entry.
pub(super) fn programs(
    document: &DocumentMut,
    runtimes: &[&str],
    program: &[&str],
) -> BTreeMap<String, String> {
    let runtimes = get(document.as_item(), runtimes).and_then(Item::as_table_like);
    let runtimes = runtimes.into_iter().flat_map(|table| table.iter());
    let program = |entry| text(entry, program).unwrap_or_default();
    runtimes
        .map(|(name, entry)| (name.into(), program(entry).into()))
        .collect()
}

/// Returns the table of the default runtime, unless it is one of our `own`, or of runc or crun, whichever exists first.
pub(super) fn options_of_default<S: AsRef<str>>(
    runtimes: Option<&Item>,
    default: Option<&str>,
    own: &[S],
) -> Option<Item> {
    default
        .filter(|name| !name.starts_with("nvidia") && own.iter().all(|own| own.as_ref() != *name))
        .into_iter()
        .chain(["runc", "crun"])
        .find_map(|name| get(runtimes?, &[name]).filter(|item| item.is_table_like()))
        .map(clean)
}

/// Returns the table at a key path; creates it if missing.
pub(super) fn table<'a>(
    path: &Path,
    root: &'a mut dyn TableLike,
    keys: &[&str],
) -> Result<&'a mut dyn TableLike> {
    let Some((key, rest)) = keys.split_first() else {
        return Ok(root);
    };
    if root.get(key).is_none() {
        let mut table = Table::new();
        table.set_implicit(true); // shown only if it holds settings
        toml_values::insert(root, key, Item::Table(table));
    }
    let inner = root.get_mut(key).and_then(Item::as_table_like_mut);
    let inner = inner.ok_or_else(|| {
        let text = format!("{}: {key} is not a table", path.display());
        Error::new(ErrorKind::Malformed, text)
    })?;
    table(path, inner, rest)
}

/// Removes the item at a key path, and parent tables that are then empty and have no header.
pub(super) fn remove(root: &mut dyn TableLike, keys: &[&str]) {
    let Some((key, rest)) = keys.split_first() else {
        return;
    };
    if rest.is_empty() {
        root.remove(key);
        return;
    }
    let Some(item) = root.get_mut(key) else {
        return;
    };
    let Some(inner) = item.as_table_like_mut() else {
        return;
    };
    remove(inner, rest);
    let hidden = item
        .as_table()
        .is_some_and(|table| table.is_implicit() && table.is_empty());
    if hidden {
        root.remove(key);
    }
}

/// Copies an item without comments and blanks; tables that contain more than tables get headers.
pub(super) fn clean(item: &Item) -> Item {
    if let Some(table) = item.as_table_like() {
        let mut copy = Table::new();
        for (key, value) in table.iter() {
            copy.insert(key, clean(value));
        }
        copy.set_implicit(!copy.is_empty());
        return Item::Table(copy);
    }
    match item {
        Item::Value(value) => {
            let mut value = value.clone();
            value.decor_mut().clear();
            Item::Value(value)
        }
        other => other.clone(),
    }
}

/// Sets a key to a string unless it already has that value.
pub(super) fn set(table: &mut dyn TableLike, key: &str, value: impl Into<Value>) {
    let value = value.into();
    let old = table.get(key).and_then(Item::as_value);
    if old.is_none_or(|old| old.to_string().trim() != value.to_string().trim()) {
        toml_values::set(table, key, value);
    }
}
