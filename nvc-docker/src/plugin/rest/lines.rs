//! Formats labelled lines; the values of consecutive lines are aligned.

use std::fmt::{Display, Write as _};

use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct Lines {
    text: String,
    /// Labelled lines of a block whose width is not known yet.
    run: Vec<(String, String)>,
}

impl Lines {
    /// Adds a line with a value; missing ones are `N/A`.
    pub(super) fn value(&mut self, label: &str, value: Option<impl Display>, unit: &str) {
        let value = match value {
            Some(value) => format!("{value}{unit}"),
            None => "N/A".to_owned(),
        };
        self.run.push((format!("{label}:"), value));
    }

    /// Adds the lines of a table: labels, places of their values in a document, and units. Without a place it is a line
    /// without a value.
    pub(super) fn table(&mut self, of: &Value, rows: &[(&str, &str, &str)]) {
        for (label, place, unit) in rows {
            let value = match of.pointer(place) {
                _ if place.is_empty() => {
                    self.plain(label);
                    continue;
                }
                None | Some(Value::Null) => None,
                Some(Value::String(text)) => Some(text.clone()),
                Some(other) => Some(other.to_string()),
            };
            self.value(label, value, unit);
        }
    }

    /// Adds a line without a value, which ends the aligned block before it.
    pub(super) fn plain(&mut self, line: &str) {
        self.end_run();
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the whole text.
    pub(super) fn finish(mut self) -> String {
        self.end_run();
        self.text
    }

    fn end_run(&mut self) {
        let width = |(label, _): &(String, String)| label.chars().count();
        let widest = self.run.iter().map(width).max().unwrap_or_default();
        for (label, value) in self.run.drain(..) {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "{label:widest$}  {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_below_each_other() {
        let mut lines = Lines::default();
        lines.value("a", Some(1), " W");
        lines.value("  longer", None::<u32>, " W");
        lines.plain("  x");
        lines.value("b", Some("c"), "");
        assert_eq!(
            lines.finish(),
            "a:         1 W\n  longer:  N/A\n  x\nb:  c\n"
        );
    }
}
