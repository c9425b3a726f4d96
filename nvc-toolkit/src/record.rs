//! Formats log records in the two forms that container engines parse: key=value text and JSON lines.

use std::time::{SystemTime, UNIX_EPOCH};

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
    let (time, level) = (now(), level.name());
    match format {
        Format::Text => format!("time=\"{time}\" level={level} msg={}\n", quoted(message)),
        Format::Json => format!(
            "{}\n",
            json!({"level": level, "msg": message, "time": time})
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

/// Formats the current time, in UTC, to the second.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.map_or(0, |since| since.as_secs()))
}

fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have the leap day last.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_795_350_000), "2026-11-22T12:20:00Z");
    }

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
