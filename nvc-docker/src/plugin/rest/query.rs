//! Parses paths and queries of requests like Go's library. Pure.

/// Decodes `%xx` in a text; None if an escape is malformed. In queries a plus sign is a space.
fn unescaped(text: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                let digits = std::str::from_utf8(after.get(..2)?).ok()?;
                if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
                    return None;
                }
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = after.get(2..)?;
            }
            b'+' if is_query => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the first value of a key; ignores malformed pairs.
pub(super) fn value(query: &str, key: &str) -> Option<String> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
        .find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescaped(value, true)?;
            (unescaped(name, true)? == key).then_some(value)
        })
}

/// Returns a list in a query, separated by single spaces; None for everything.
pub(super) fn list(query: &str, key: &str) -> Option<Vec<String>> {
    let value = value(query, key).filter(|value| !value.is_empty() && value != "*")?;
    Some(value.split(' ').map(str::to_owned).collect())
}

/// The meaning of a path: itself, a redirect, or invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Path {
    Plain(String),
    /// It contains empty parts, `.` or `..`; the value is the cleaned path, escaped.
    Moved(String),
    Malformed,
}

/// Parses a path.
pub(super) fn path(raw: &str) -> Path {
    let Some(text) = unescaped(raw, false) else {
        return Path::Malformed;
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if text.ends_with('/') && clean != "/" {
        clean.push('/');
    }
    if clean == text {
        Path::Plain(clean)
    } else {
        Path::Moved(escaped(&clean))
    }
}

fn escaped(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
            byte if b"/-_.~$&+,:;=@".contains(&byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (query, expected) in [
            ("", None),
            ("dev=", None),
            ("dev=*", None),
            ("dev=%2A", None),
            ("DEV=1", None),
            ("dev=%zz", None),
            ("dev=1;vol=2", None),
            ("dev=1", Some(vec!["1"])),
            ("dev=1&dev=0", Some(vec!["1"])),
            ("vol=x&dev=1+0", Some(vec!["1", "0"])),
            ("dev=%2B1%200", Some(vec!["+1", "0"])),
            ("dev=0++1", Some(vec!["0", "", "1"])),
            ("dev=*+1", Some(vec!["*", "1"])),
            ("&&dev=%47PU-", Some(vec!["GPU-"])),
        ] {
            let expected = expected.map(|v| v.into_iter().map(str::to_owned).collect());
            assert_eq!(list(query, "dev"), expected, "{query}");
        }
    }

    #[test]
    fn paths() {
        let plain = |text: &str| Path::Plain(text.into());
        let moved = |text: &str| Path::Moved(text.into());
        for (raw, expected) in [
            ("/", plain("/")),
            ("/gpu/info", plain("/gpu/info")),
            ("/gpu/info/", plain("/gpu/info/")),
            ("/gpu%2Finfo", plain("/gpu/info")),
            ("//gpu/info", moved("/gpu/info")),
            ("/gpu/x/../info", moved("/gpu/info")),
            ("/gpu/./info/", moved("/gpu/info/")),
            ("/../..", moved("/")),
            ("//a b%3Cc", moved("/a%20b%3Cc")),
            ("/%", Path::Malformed),
            ("/%zz", Path::Malformed),
            ("/%e", Path::Malformed),
        ] {
            assert_eq!(path(raw), expected, "{raw}");
        }
    }
}
