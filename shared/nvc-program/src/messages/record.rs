//! Formats log records in the two forms that container engines parse: key=value text and JSON lines.

use std::borrow::Cow;

use libnvc::{printable, printable_up_to};
use serde_json::json;

use crate::utc::Utc;

/// Length limit of a quoted text.
const MAX_LEN: usize = 4 << 10;

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
pub fn record(format: Format, level: Level, text: &str) -> String {
    let text = escaped(text);
    match format {
        Format::Text => framed(level, &text),
        Format::Json => {
            let (time, level) = (Utc::now().to_string(), level.name());
            format!("{}\n", json!({"level": level, "msg": text, "time": time}))
        }
    }
}

/// Escapes a text that is quoted afterwards, which at most doubles it.
fn escaped(text: &str) -> Cow<'_, str> {
    let whole = printable(text);
    let more = whole.matches(['"', '\\']).count();
    if whole.len() + more <= MAX_LEN {
        return whole;
    }
    printable_up_to(MAX_LEN / 2, text)
}

/// Formats one record as text in at most `limit` bytes, with its newline; empty if not even the frame fits.
pub fn record_up_to(limit: usize, level: Level, text: &str) -> String {
    let whole = framed(level, &printable(text));
    if whole.len() <= limit {
        return whole;
    }
    // Quoting at most doubles a text.
    match limit.saturating_sub(framed(level, "").len()) / 2 {
        0 => String::new(),
        room => framed(level, &printable_up_to(room, text)),
    }
}

fn framed(level: Level, escaped: &str) -> String {
    let (time, level, text) = (Utc::now(), level.name(), quoted(escaped));
    format!("time=\"{time}\" level={level} msg={text}\n")
}

/// Quotes an escaped text unless it is one plain word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain/word"), "plain/word");
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted(r#"a "b" \x0a"#), r#""a \"b\" \\x0a""#);
    }

    #[test]
    fn records_have_three_parts() {
        let text = record(Format::Text, Level::Warning, "a b");
        assert!(text.ends_with("level=warning msg=\"a b\"\n"), "{text}");
        let json = record(Format::Json, Level::Error, "a \"b\"");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
        assert_eq!(json["level"], "error");
        assert_eq!(json["msg"], "a \"b\"");
    }

    #[test]
    fn long_texts_have_their_limit_after_quoting() {
        for format in [Format::Text, Format::Json] {
            let empty = record(format, Level::Error, "").len();
            for text in ["\"", "\\", "\n", "a"] {
                let length = record(format, Level::Error, &text.repeat(1 << 20)).len();
                assert!(
                    length <= empty + MAX_LEN && length > 2000,
                    "{text}: {length}"
                );
            }
        }
    }

    #[test]
    fn values_cannot_forge_records() {
        let value = "a\" level=info msg=\"b\n\u{1b}[31m\u{9b}";
        let text = record(Format::Text, Level::Error, value);
        let quoted = r#"msg="a\" level=info msg=\"b\\x0a\\x1b[31m\\xc2\\x9b""#;
        assert!(text.ends_with(&format!("{quoted}\n")), "{text}");
        let json = record(Format::Json, Level::Error, value);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_default();
        assert_eq!(json["msg"], r#"a" level=info msg="b\x0a\x1b[31m\xc2\x9b"#);
    }

    #[test]
    fn records_keep_their_limit() {
        for text in ["a", "\"", "\n", "a b"] {
            let text = text.repeat(9999);
            for limit in 0..300 {
                let line = record_up_to(limit, Level::Error, &text);
                assert!(line.len() <= limit, "{limit}: {line}");
                assert!(line.is_empty() || line.contains("..."), "{limit}: {line}");
                assert!(line.is_empty() || line.ends_with('\n'), "{limit}: {line}");
            }
        }
        assert!(record_up_to(4096, Level::Error, "it fails").contains("\"it fails\""));
    }
}
