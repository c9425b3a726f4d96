//! Encodes bytes as URL-safe base64 without padding.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(super) fn url_safe(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 4 / 3 + 3);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..=group.len() {
            let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap_or_default();
            text.push(ALPHABET.get(index).copied().map_or('A', char::from));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::url_safe;

    #[test]
    fn texts() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (b"\xfb\xff\xfe", "-__-"),
        ] {
            assert_eq!(url_safe(bytes), text);
        }
    }
}
