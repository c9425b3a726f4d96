//! Sets values in TOML documents, and checks an edit: only the keys that it was to change may differ.
//!
//! TOML has several ways to write a table, and not every combination of them is valid. So an edited text is parsed again
//! and compared before it replaces a file.

use std::collections::BTreeMap;

use libnvc::{Error, ErrorKind, Result};
use nvc_policy::config;
use toml_edit::{DocumentMut, Item, TableLike, Value};

/// The values of a document by their key paths, however they are written. Empty tables have none.
pub(crate) type Values = BTreeMap<Vec<String>, String>;

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
    let others = |document: &DocumentMut| others(values(document.as_item()), changed);
    if others(before) == others(&after) {
        Ok(())
    } else {
        Err(failed("another value would change"))
    }
}

/// Returns the values that are not at or below one of the `changed` key paths.
pub(crate) fn others(mut values: Values, changed: &[Vec<&str>]) -> Values {
    values.retain(|path, _| !changed.iter().any(|above| is_below(path, above)));
    values
}

/// Returns true if a key path is, or begins with, another one.
pub(crate) fn is_below(path: &[String], above: &[&str]) -> bool {
    path.len() >= above.len() && path.iter().zip(above).all(|(one, other)| one == other)
}

/// Returns the values of an item.
pub(crate) fn values(item: &Item) -> Values {
    let mut found = Values::new();
    collect(item, &[], &mut found);
    found
}

fn collect(item: &Item, path: &[String], found: &mut Values) {
    if let Some(table) = item.as_table_like() {
        for (key, item) in table.iter() {
            collect(item, &[path, &[key.to_owned()]].concat(), found);
        }
    } else if let Ok(value) = item.clone().into_value() {
        found.insert(path.to_owned(), plain(&value));
    }
}

/// Returns a value without comments, blanks and the way in which it was written.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.value()),
        Value::Array(list) => format!("{:?}", list.iter().map(plain).collect::<Vec<_>>()),
        Value::InlineTable(_) => format!("{:?}", values(&Item::Value(value.clone()))),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => format!("{:?}", number.value()),
        Value::Boolean(word) => word.value().to_string(),
        Value::Datetime(date) => date.value().to_string(),
    }
}

/// Sets a key to a value. A known key keeps the comments around it, which [`TableLike::insert`] would drop.
pub(crate) fn set(table: &mut dyn TableLike, key: &str, value: impl Into<Value>) {
    let mut new = value.into();
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
