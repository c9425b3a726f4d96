//! Escapes text of unknown origin.
//!
//! A raw newline would forge a log line, an escape sequence would control the reader's terminal, and a text of the
//! image's choice could mean something in the file into which the engine has redirected a message.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;

/// Length limit of an escaped text: engines put it into one error message, and an image must not fill a log.
const MAX_LEN: usize = 4 << 10;

/// Marks a text that was cut.
const CUT: &str = "...";

/// Escapes everything but printable ASCII as `\xNN`, byte by byte, and the backslash too; cuts the result after
/// 4 KiB.
///
/// Every byte of the text can be recovered from the result. Quoting for a log format and JSON encoding come afterwards.
pub fn printable<T: AsRef<[u8]> + ?Sized>(text: &T) -> Cow<'_, str> {
    printable_up_to(MAX_LEN, text)
}

/// Does the same with another limit.
pub fn printable_up_to<T: AsRef<[u8]> + ?Sized>(limit: usize, text: &T) -> Cow<'_, str> {
    let bytes = text.as_ref();
    if bytes.len() <= limit
        && bytes.iter().all(|&byte| is_plain(byte))
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return text.into();
    }
    let fits = bytes.iter().map(|&byte| width(byte)).sum::<usize>() <= limit;
    let (end, mark) = if fits {
        (limit, "")
    } else {
        (limit.saturating_sub(CUT.len()), CUT)
    };
    let mut out = String::with_capacity(limit.min(4 * bytes.len()));
    for &byte in bytes {
        if out.len() + width(byte) > end {
            break;
        }
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out += mark;
    out.into()
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\\'
}

fn width(byte: u8) -> usize {
    if is_plain(byte) { 1 } else { 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays() {
        let plain: String = (' '..='~').filter(|&c| c != '\\').collect();
        assert!(matches!(printable(&plain), Cow::Borrowed(text) if text == plain));
        assert_eq!(printable(""), "");
    }

    #[test]
    fn everything_else_is_escaped() {
        let table: [(&[u8], &str); 7] = [
            (b"lib\nI1114 all is well", "lib\\x0aI1114 all is well"),
            (b"\x1b[31m\r\t\0\x7f", "\\x1b[31m\\x0d\\x09\\x00\\x7f"),
            (b"C:\\x0a", "C:\\x5cx0a"),
            ("\u{e9}".as_bytes(), "\\xc3\\xa9"),
            ("\u{9b}0m".as_bytes(), "\\xc2\\x9b0m"),
            ("\u{202e}".as_bytes(), "\\xe2\\x80\\xae"),
            (b"\xff\xfe", "\\xff\\xfe"),
        ];
        for (bytes, expected) in table {
            assert_eq!(printable(bytes), expected);
        }
    }

    #[test]
    fn every_byte_can_be_told() {
        let mut seen = std::collections::BTreeSet::new();
        for byte in 0..=u8::MAX {
            let text = printable(&[byte]).into_owned();
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            assert!(seen.insert(text));
        }
    }

    #[test]
    fn long_texts_are_cut_between_escapes() {
        assert_eq!(printable(&[b'a'; MAX_LEN]).len(), MAX_LEN);
        let cut = printable(&[b'a'; MAX_LEN + 1]).into_owned();
        assert!(cut.len() == MAX_LEN && cut.ends_with("aa..."), "{cut}");
        assert_eq!(printable(&[b'\n'; MAX_LEN / 4]).len(), MAX_LEN);
        for prefix in ["", "a", "aa", "aaa"] {
            let text = format!("{prefix}{}", "\n".repeat(MAX_LEN));
            let cut = printable(&text).into_owned();
            assert!(cut.len() <= MAX_LEN && cut.ends_with("\\x0a..."), "{cut}");
        }
        assert_eq!(printable(&vec![0x1b; 1 << 22]).len(), MAX_LEN - 1);
    }
}
