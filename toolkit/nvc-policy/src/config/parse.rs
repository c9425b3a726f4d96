//! Parses config.toml into a [`Config`]: every value is checked, with line and column in errors.

use toml_edit::{Document, Item, TableLike, Value};

use super::keys::{self, Key};
use super::{Config, Error, LoadedConfig};

/// Parses a configuration.
///
/// # Errors
/// Text that is not TOML, a value of the wrong type, an ldconfig that the file itself does not allow.
pub fn parse(text: &str) -> Result<LoadedConfig, Error> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let document = Document::parse(text).map_err(|error| {
        let place = place(text, error.span());
        let message = error.message().trim_end().replace('\n', ", ");
        Error::Syntax(format!("{place}{message}"))
    })?;

    let mut parser = ConfigParser {
        text,
        loaded: LoadedConfig {
            config: Config::default(),
            warnings: Vec::new(),
        },
    };
    parser.table("", document.as_table())?;
    let loaded = parser.loaded;
    super::ldconfig::check(&loaded.config)?;
    Ok(loaded)
}

struct ConfigParser<'a> {
    text: &'a str,
    loaded: LoadedConfig,
}

impl ConfigParser<'_> {
    /// Parses a table and its subtables.
    fn table(&mut self, prefix: &str, table: &dyn TableLike) -> Result<(), Error> {
        for (name, item) in table.iter() {
            let full = match prefix {
                "" => name.to_owned(),
                _ => format!("{prefix}.{name}"),
            };
            let span = table
                .get_key_value(name)
                .and_then(|(key, _)| key.span())
                .or_else(|| item.span());
            // A quoted name with a dot is not a path.
            let plain = !name.contains('.');
            if let (Some(key), true) = (keys::find(&full), plain) {
                let line = self.line_of(span);
                self.loaded.config.lines.push((full.clone(), line));
                self.value(key, item)?;
            } else if keys::is_table(&full) && plain {
                let Some(inner) = item.as_table_like() else {
                    return Err(self.wrong_type(&full, "a table", item));
                };
                self.table(&full, inner)?;
            } else {
                let place = place(self.text, span);
                let near = keys::nearest(&full)
                    .map(|near| format!("; did you mean {near}?"))
                    .unwrap_or_default();
                let warning = format!("{place}unknown key {full}{near}");
                self.loaded.warnings.push(warning);
            }
        }
        Ok(())
    }

    /// Parses one value and stores it.
    fn value(&mut self, key: Key, item: &Item) -> Result<(), Error> {
        (key.store)(&mut self.loaded.config, item)
            .ok_or_else(|| self.wrong_type(key.name, key.kind.name(), item))
    }

    fn wrong_type(&self, name: &str, expected: &str, item: &Item) -> Error {
        let found = match item {
            Item::Value(Value::Boolean(_)) => "true or false",
            Item::Value(Value::String(_)) => "a text",
            Item::Value(Value::Array(_)) => "a list of something else",
            Item::Value(Value::Integer(_) | Value::Float(_)) => "a number",
            Item::Value(Value::Datetime(_)) => "a date",
            Item::ArrayOfTables(_) => "a list of tables, [[NAME]]",
            _ => "a table",
        };
        let place = place(self.text, item.span());
        Error::Type(format!("{place}{name}: expected {expected}, found {found}"))
    }

    fn line_of(&self, span: Option<std::ops::Range<usize>>) -> usize {
        span.map_or(1, |span| position(self.text, span.start).0)
    }
}

/// Says where a span begins: `line 1, column 2: `, or nothing.
pub fn place(text: &str, span: Option<std::ops::Range<usize>>) -> String {
    span.map(|span| {
        let (line, column) = position(text, span.start);
        format!("line {line}, column {column}: ")
    })
    .unwrap_or_default()
}

/// Returns line and column of a byte, counted from 1.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}
