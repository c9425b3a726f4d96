//! Parses JSON as leniently as the programs that we replace: names match in any case, data after the first value is
//! ignored, and bytes that are not UTF-8 become replacement characters.

use libnvc::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::unique::Unique;

/// Parses the first JSON value of a text.
///
/// # Errors
/// The parser's message, with line and column.
pub fn first_value(bytes: &[u8]) -> Result<Value> {
    first(bytes)
}

/// Works like [`first_value`], but refuses a duplicate key: programs differ in which of its values they read.
///
/// # Errors
/// As [`first_value`].
pub fn first_unique_value(bytes: &[u8]) -> Result<Value> {
    first(bytes).map(|Unique(value)| value)
}

fn first<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let text = String::from_utf8_lossy(bytes);
    let mut values = serde_json::Deserializer::from_str(&text).into_iter::<T>();
    match values.next() {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(malformed(error.to_string())),
        None => Err(malformed("it is empty")),
    }
}

/// Returns the member of this name, in any case; the last one of several. Null counts as absent.
pub fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object
        .iter()
        .rev()
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
        .filter(|value| !value.is_null())
}

/// Returns the member, which must be an object.
///
/// # Errors
/// It has another type.
pub fn object<'a>(
    parent: &'a Map<String, Value>,
    name: &str,
) -> Result<Option<&'a Map<String, Value>>> {
    member(parent, name)
        .map(|value| value.as_object().ok_or_else(|| mismatch(name, "an object")))
        .transpose()
}

/// Returns the member, which must be a string; empty if it is absent.
///
/// # Errors
/// It has another type.
pub fn text<'a>(parent: &'a Map<String, Value>, name: &str) -> Result<&'a str> {
    member(parent, name).map_or(Ok(""), |value| {
        value.as_str().ok_or_else(|| mismatch(name, "a text"))
    })
}

/// Returns the member, which must be a list; empty if it is absent.
///
/// # Errors
/// It has another type.
pub fn list<'a>(parent: &'a Map<String, Value>, name: &str) -> Result<&'a [Value]> {
    member(parent, name).map_or(Ok(&[]), |value| {
        value
            .as_array()
            .map(Vec::as_slice)
            .ok_or_else(|| mismatch(name, "a list"))
    })
}

/// Returns the member, which must be a list of strings; empty if it is absent.
///
/// # Errors
/// It has another type.
pub fn texts<'a>(parent: &'a Map<String, Value>, name: &str) -> Result<Vec<&'a str>> {
    as_texts(list(parent, name)?, name)
}

/// Returns the values, which must be strings.
///
/// # Errors
/// One has another type.
pub fn as_texts<'a>(values: &'a [Value], name: &str) -> Result<Vec<&'a str>> {
    let text = |value: &'a Value| match value {
        Value::Null => Some(""),
        value => value.as_str(),
    };
    values
        .iter()
        .map(text)
        .collect::<Option<_>>()
        .ok_or_else(|| mismatch(name, "a list of strings"))
}

/// Describes a member of the wrong type.
pub fn mismatch(name: &str, expected: &str) -> Error {
    malformed(format!("{name}: expected {expected}"))
}

/// Describes a text that is not what it should be.
pub fn malformed(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        for text in [
            "null",
            "[1, -2, 18446744073709551615, 1e400, 1.50, 123456789012345678901234]",
            r#"{"b": {"x": [{}, "\u00e9"]}, "a": true} {"#,
        ] {
            let expected = serde_json::Deserializer::from_str(text).into_iter().next();
            let expected: Option<Value> = expected.and_then(std::result::Result::ok);
            assert_eq!(first_unique_value(text.as_bytes()).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_an_error() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"x": [{"b": {}, "c": 1, "b": {}}]}"#,
            r#"{"a": 1, "\u0061": 1}"#,
        ] {
            let error = first_unique_value(text.as_bytes()).unwrap_err().message();
            assert!(error.contains("is there twice"), "{text}: {error}");
        }
        assert!(first_unique_value(br#"{"a": {"b": 1}, "b": {"a": 1}, "A": 1}"#).is_ok());
    }
}
