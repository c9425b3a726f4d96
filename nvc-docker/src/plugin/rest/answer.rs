//! Builds answers: a status, a type, a body.

use std::borrow::Cow;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

pub(crate) type Answer = Response<Full<Bytes>>;

/// Content type of text.
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
/// Content type of JSON.
pub(super) const JSON: &str = "application/json";

/// Body for unknown paths.
pub(crate) const NOT_FOUND_TEXT: &str = "404 page not found\n";
/// Body for failures whose cause is only in the log.
pub(crate) const INTERNAL_ERROR: &str = "internal error, check logs for details\n";

/// Builds an answer with a content type.
pub(crate) fn of_type(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Cow<'static, str>>,
) -> Answer {
    let body = match body.into() {
        Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
        Cow::Owned(text) => Bytes::from(text),
    };
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    answer
}

/// Builds a text answer.
pub(super) fn text(status: StatusCode, body: impl Into<Cow<'static, str>>) -> Answer {
    of_type(status, TEXT, body)
}

/// Serialises a value as one line of JSON, escaping the characters that Go escapes.
pub(crate) fn json(value: &impl Serialize) -> String {
    // The values contain neither maps with keys that are not strings nor numbers that JSON lacks.
    let mut text = serde_json::to_string(value).unwrap_or_default();
    if text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        // They occur only in strings.
        text = text
            .replace('<', r"\u003c")
            .replace('>', r"\u003e")
            .replace('&', r"\u0026")
            .replace('\u{2028}', r"\u2028")
            .replace('\u{2029}', r"\u2029");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::json;

    #[test]
    fn json_is_that_of_go() {
        let line = json(&["<a href=\"x\">&", "é\u{2028}"]);
        let expected = r#"["\u003ca href=\"x\"\u003e\u0026","é\u2028"]"#;
        assert_eq!(line, format!("{expected}\n"));
    }
}
