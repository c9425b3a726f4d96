//! Parses paths and queries of requests like Go's library. Pure.

/// Decodes `%xx` in a text; None if an escape is malformed. In queries a plus sign is a space.
pub(super) fn unescaped(text: &str, is_query: bool) -> Option<String> {
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
    fn escapes() {
        for (raw, text) in [
            ("/gpu%2Finfo", Some("/gpu/info")),
            ("/a+b", Some("/a+b")),
            ("/%", None),
            ("/%zz", None),
            ("/%e", None),
        ] {
            assert_eq!(unescaped(raw, false).as_deref(), text, "{raw}");
        }
    }
}
