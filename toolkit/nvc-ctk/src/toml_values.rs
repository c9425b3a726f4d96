//! Compares the values of TOML documents, to check an edit: only the keys that it was to change may differ.
//!
//! TOML has several ways to write a table, and not every combination of them is valid. So an edited text is parsed again
//! and compared before it replaces a file.

use std::collections::BTreeMap;

use libnvc::{Error, ErrorKind, Result};
use nvc_policy::config;
use toml_edit::{DocumentMut, Item, TableLike, Value};

/// A value without comments, blanks and the way in which it was written.
#[derive(Clone, Debug, PartialEq)]
enum Plain {
    Table(BTreeMap<String, Plain>),
    List(Vec<Plain>),
    Text(String),
    /// A number, a boolean or a date, as it is written.
    Other(String),
}

/// Parses a document; a mistake has its line and column.
pub(crate) fn parse(text: &str) -> std::result::Result<DocumentMut, String> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| config::place(text, error.span()) + error.message())
}

/// Checks that an edited text is TOML in which only values at or below the `changed` key paths differ.
pub(crate) fn check(before: &DocumentMut, after: &str, changed: &[Vec<&str>]) -> Result<()> {
    let failed = |reason: &str| {
        let text = format!("the file is written in a way that cannot be edited: {reason}");
        let error = Error::new(ErrorKind::Malformed, text);
        error.hint("write its tables with headers, [NAME], and try again")
    };
    let after: DocumentMut = after
        .parse()
        .map_err(|error: toml_edit::TomlError| failed(error.message()))?;
    if others(before, changed) == others(&after, changed) {
        Ok(())
    } else {
        Err(failed("another value would change"))
    }
}

/// Returns true if two items have the same value, however it is written.
pub(crate) fn equal(one: &Item, other: &Item) -> bool {
    plain(one) == plain(other)
}

/// Returns the values at no changed key path, without empty tables.
fn others(document: &DocumentMut, changed: &[Vec<&str>]) -> BTreeMap<String, Plain> {
    let mut all = table(document.as_table());
    for path in changed {
        remove(&mut all, path);
    }
    prune(&mut all);
    all
}

fn remove(table: &mut BTreeMap<String, Plain>, path: &[&str]) {
    match path {
        [] => {}
        [key] => drop(table.remove(*key)),
        [key, rest @ ..] => {
            if let Some(Plain::Table(inner)) = table.get_mut(*key) {
                remove(inner, rest);
            }
        }
    }
}

fn prune(table: &mut BTreeMap<String, Plain>) {
    table.retain(|_, value| match value {
        Plain::Table(inner) => {
            prune(inner);
            !inner.is_empty()
        }
        _ => true,
    });
}

fn table(table: &dyn TableLike) -> BTreeMap<String, Plain> {
    let entries = table.iter().filter(|(_, item)| !item.is_none());
    entries
        .map(|(key, item)| (key.to_owned(), plain(item)))
        .collect()
}

fn plain(item: &Item) -> Plain {
    match item {
        Item::None => Plain::Other(String::new()),
        Item::Value(one) => value(one),
        Item::Table(inner) => Plain::Table(table(inner)),
        Item::ArrayOfTables(list) => {
            Plain::List(list.iter().map(|one| Plain::Table(table(one))).collect())
        }
    }
}

fn value(one: &Value) -> Plain {
    match one {
        Value::String(text) => Plain::Text(text.value().clone()),
        Value::Array(list) => Plain::List(list.iter().map(value).collect()),
        Value::InlineTable(inner) => Plain::Table(table(inner)),
        Value::Integer(number) => Plain::Other(number.value().to_string()),
        Value::Float(number) => Plain::Other(number.value().to_string()),
        Value::Boolean(word) => Plain::Other(word.value().to_string()),
        Value::Datetime(date) => Plain::Other(date.value().to_string()),
    }
}

/// Sets a key to a value. A known key keeps the comments around it, which [`TableLike::insert`] would drop.
pub(crate) fn set(table: &mut dyn TableLike, key: &str, mut new: Value) {
    match table.get_mut(key) {
        Some(item) => {
            if let Item::Value(old) = item {
                *new.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(new);
        }
        None => drop(table.insert(key, Item::Value(new))),
    }
}

/// Inserts an item. In a table that dotted keys or braces write, a table is one in braces: a header would not be valid.
pub(crate) fn insert(table: &mut dyn TableLike, key: &str, item: Item) {
    let item = if table.is_dotted() {
        item.into_value().map_or_else(|item| item, Item::Value)
    } else {
        item
    };
    table.insert(key, item);
}
