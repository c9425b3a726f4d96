//! Formats log records in the two forms that container engines parse: key=value text and JSON lines.

use libnvc::utc::Utc;
use serde_json::json;

/// Severity of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Level {
    Trace,
    Debug,
    Info,
    Warning,
    Error,
    Fatal,
    Panic,
}

impl Level {
    /// Returns the level of this name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "trace" => Self::Trace,
            "debug" => Self::Debug,
            "info" => Self::Info,
            "warn" | "warning" => Self::Warning,
            "error" => Self::Error,
            "fatal" => Self::Fatal,
            "panic" => Self::Panic,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
            Self::Panic => "panic",
        }
    }
}

/// Format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `time="..." level=... msg="..."`
    Text,
    /// `{"level":...}`
    Json,
}

/// Formats one record with its newline.
pub fn line(format: Format, level: Level, message: &str) -> String {
    let (time, level) = (Utc::now(), level.name());
    match format {
        Format::Text => format!("time=\"{time}\" level={level} msg={}\n", quoted(message)),
        Format::Json => format!(
            "{}\n",
            json!({"level": level, "msg": message, "time": time.to_string()})
        ),
    }
}

/// Quotes a text unless it is one plain word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Images choose part of these texts, and terminals interpret control characters.
            letter if letter.is_control() => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain/word"), "plain/word");
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted("a \"b\"\n\x1b[0m"), "\"a \\\"b\\\"\\n\\u001b[0m\"");
    }

    #[test]
    fn records_have_three_parts() {
        let text = line(Format::Text, Level::Warning, "a b");
        assert!(text.ends_with("level=warning msg=\"a b\"\n"), "{text}");
        let json = line(Format::Json, Level::Error, "a \"b\"");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
        assert_eq!(json["level"], "error");
        assert_eq!(json["msg"], "a \"b\"");
    }
}
