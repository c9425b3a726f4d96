//! Accesses TOML documents by key paths.

use std::collections::BTreeMap;
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::{IsRemoved, Removed};
use crate::toml_values;
pub(super) use crate::toml_values::set;

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

/// Where the files of an engine have its runtimes.
pub(super) struct Layout {
    /// The table of the runtimes.
    pub(super) runtimes: Vec<&'static str>,
    /// The name of the default one.
    pub(super) default: Vec<&'static str>,
    /// The program of a runtime, in its entry.
    pub(super) program: &'static [&'static str],
}

impl Layout {
    /// Returns the key path of a runtime's entry.
    pub(super) fn entry<'n>(&self, name: &'n str) -> Vec<&'n str> {
        [&self.runtimes[..], &[name]].concat()
    }

    /// Returns the program in a runtime's entry.
    pub(super) fn program<'e>(&self, entry: &'e Item) -> &'e str {
        text(entry, self.program).unwrap_or_default()
    }

    /// Returns the runtimes of a document, with their programs.
    pub(super) fn registered(&self, document: &DocumentMut) -> BTreeMap<String, String> {
        let runtimes = get(document.as_item(), &self.runtimes).and_then(Item::as_table_like);
        let runtimes = runtimes.into_iter().flat_map(|table| table.iter());
        runtimes
            .map(|(name, entry)| (name.into(), self.program(entry).into()))
            .collect()
    }

    /// Returns the default runtime of a document.
    pub(super) fn default_runtime<'d>(&self, document: &'d DocumentMut) -> Option<&'d str> {
        text(document.as_item(), &self.default)
    }

    /// Removes runtimes from a document, and a default runtime that is one of them.
    pub(super) fn remove(
        &self,
        path: &Path,
        original: &DocumentMut,
        is_removed: &IsRemoved<'_>,
    ) -> Result<Removed> {
        let mut names: Vec<String> = Vec::new();
        let mut document = original.clone();
        for (name, program) in self.registered(original) {
            if is_removed(&name, &program) {
                remove(document.as_table_mut(), &self.entry(&name));
                names.push(name);
            }
        }
        let default = self.default_runtime(original);
        let had_default = default.is_some_and(|default| names.iter().any(|name| name == default));
        let mut changed: Vec<_> = names.iter().map(|name| self.entry(name)).collect();
        if had_default {
            remove(document.as_table_mut(), &self.default);
            changed.push(self.default.clone());
        }
        // Tables without settings are equivalent to no file.
        let is_bare = !names.is_empty() && toml_values::values(document.as_item()).is_empty();
        let text = (!is_bare)
            .then(|| checked(path, original, &document, &changed))
            .transpose()?;
        Ok(Removed {
            text,
            names,
            had_default,
        })
    }
}

/// Returns the table of the default runtime, unless it is one of our `own`, or of runc or crun, whichever exists first.
pub(super) fn options_of_default(
    runtimes: Option<&Item>,
    default: Option<&str>,
    own: &[&str],
) -> Option<Item> {
    default
        .filter(|name| !name.starts_with("nvidia") && !own.contains(name))
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
