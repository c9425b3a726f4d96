//! Writes a specification as YAML or JSON.
//!
//! Keys are in the order of the schema. A plain YAML scalar is written only if every reader, of YAML 1.1 and 1.2, reads
//! it as the same string; all others are double-quoted.

use serde_json::Value;

use super::model::Spec;

/// The two formats of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML, in block style.
    Yaml,
    /// JSON, indented.
    Json,
}

impl Format {
    /// Returns the extension of file names.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Yaml => "yaml",
            Self::Json => "json",
        }
    }

    /// Returns the format that a word names, in any case.
    pub fn named(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "yaml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Serialises a specification. `comment` goes first, if the format has comments.
pub fn text(spec: &Spec, format: Format, comment: Option<&str>) -> String {
    let value = serde_json::to_value(spec).unwrap_or_default();
    match format {
        Format::Json => format!("{value:#}\n"),
        Format::Yaml => {
            let mut out = String::from("---\n");
            for line in comment.into_iter().flat_map(str::lines) {
                out += "# ";
                out += line;
                out.push('\n');
            }
            block(&value, 0, &mut out);
            out
        }
    }
}

/// Writes a value below a completed line, with each of its lines indented.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                spaces(indent, out);
                member(key, value, indent, out);
            }
        }
        Value::Array(items) => {
            for item in items {
                spaces(indent, out);
                out.push_str("- ");
                match item {
                    // The first member shares the line of the dash.
                    Value::Object(members) if !members.is_empty() => {
                        for (n, (key, value)) in members.iter().enumerate() {
                            if n > 0 {
                                spaces(indent + 2, out);
                            }
                            member(key, value, indent + 2, out);
                        }
                    }
                    other => {
                        inline(other, out);
                        out.push('\n');
                    }
                }
            }
        }
        other => {
            spaces(indent, out);
            inline(other, out);
            out.push('\n');
        }
    }
}

fn member(key: &str, value: &Value, indent: usize, out: &mut String) {
    scalar(key, out);
    out.push(':');
    let nested = match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if nested {
        out.push('\n');
        block(value, indent + 2, out);
    } else {
        out.push(' ');
        inline(value, out);
        out.push('\n');
    }
}

fn inline(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => scalar(text, out),
        other => out.push_str(&other.to_string()),
    }
}

fn spaces(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', count));
}

fn scalar(text: &str, out: &mut String) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
}

/// Returns true for characters that YAML allows unescaped.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
        && !matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns true if a string needs no quotes for any reader.
fn is_plain(text: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_./@%+=,:~-".contains(c);
    let first = text.chars().next();
    let begins = first.is_some_and(|c| c.is_ascii_alphabetic() || c == '/' || c == '_')
        || text.starts_with("../")
        || text.starts_with("./")
        || text
            .strip_prefix("--")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    begins && text.chars().all(safe) && !text.ends_with(':') && !is_reserved(text)
}

/// Words that some reader parses as a boolean or null.
fn is_reserved(text: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_scalars_are_quoted() {
        for text in [
            "0", "1:0", "yes", "No", "", "-", "a b", "x:", "#", "1.5", "~", ".5", "é",
        ] {
            assert!(!is_plain(text), "{text}");
        }
        for text in [
            "nvidia-cdi-hook",
            "--link",
            "../card1::/dev/dri/by-path/pci-0000:07:00.0-card",
            "A=b",
        ] {
            assert!(is_plain(text), "{text}");
        }
    }
}
