//! Parses an answer of HTTP 1.0, which is never in chunks. Pure.

use libnvc::{Error, ErrorKind, Result};

/// Limit of headers in an answer.
const MAX_HEADERS: usize = 64;
/// Length limit of an error text shown to the user.
const MAX_TEXT_LEN: usize = 200;

/// Returns true if an answer has its announced length.
pub(super) fn is_whole(answer: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(start)) = head.parse(answer) else {
        return false;
    };
    announced(&head).is_some_and(|length| answer.len() >= start.saturating_add(length))
}

fn announced(head: &httparse::Response<'_, '_>) -> Option<usize> {
    let value = header(head, "content-length")?;
    value.trim().parse().ok()
}

fn header<'a>(head: &'a httparse::Response<'_, '_>, name: &str) -> Option<&'a str> {
    let mut headers = head.headers.iter();
    let found = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(found.value).ok()
}

/// Returns the body of an answer with status 200.
///
/// # Errors
/// If the answer is invalid or truncated; the text of an answer with another status.
pub(super) fn body(answer: &[u8]) -> Result<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(answer) {
        Ok(httparse::Status::Complete(start)) => start,
        _ => {
            return Err(Error::new(ErrorKind::Malformed, "the answer is not HTTP")
                .hint("does nvidia-docker-plugin listen there?"));
        }
    };
    let rest = answer.get(start..).unwrap_or_default();
    let body = match announced(&head) {
        Some(length) => rest
            .get(..length)
            .ok_or_else(|| Error::new(ErrorKind::Malformed, "the answer is cut off"))?,
        None => rest,
    };
    match head.code {
        Some(200) => Ok(body.to_vec()),
        Some(code) => {
            let text = String::from_utf8_lossy(body);
            Err(match text.trim() {
                "" => Error::new(ErrorKind::System, format!("the plugin answers {code}")),
                text => Error::new(ErrorKind::System, shortened(text))
                    .hint(format!("the plugin answered with status {code}")),
            })
        }
        None => Err(Error::new(ErrorKind::Malformed, "the answer is not HTTP")),
    }
}

/// Truncates a text.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT_LEN).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let read = |text: &str| body(text.as_bytes());
        assert_eq!(
            read("HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nabc").unwrap(),
            b"ab"
        );
        assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nabc").unwrap(), b"abc");
        let refused = "HTTP/1.1 400 X\r\nContent-Length: 18\r\n\r\ninvalid device: 9\n";
        assert_eq!(read(refused).unwrap_err().message(), "invalid device: 9");
        for bad in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            "HTTP/1.1 301 Moved\r\n\r\n",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
