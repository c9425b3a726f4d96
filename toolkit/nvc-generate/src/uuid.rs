//! Recognises UUIDs in device ids.

/// Returns true for a UUID of five hexadecimal groups.
pub(crate) fn is_uuid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_lengths() {
        assert!(is_uuid("8a4d1f3c-0b51-4c8e-9d57-3F2A6B1C0E01"));
        for text in [
            "",
            "8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e0",
            "8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01-",
            "8a4d1f3c0b514c8e9d573f2a6b1c0e01",
            "8a4d1f3g-0b51-4c8e-9d57-3f2a6b1c0e01",
        ] {
            assert!(!is_uuid(text), "{text}");
        }
    }
}
