//! Recognises UUIDs in device ids.

/// A UUID's form: five hexadecimal groups.
const FORM: &str = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

/// Fewest characters of a UUID that name a device.
const MIN_START: usize = 4;

/// Returns true for a UUID or the start of one, long enough to name a device.
pub(crate) fn is_uuid_start(text: &str) -> bool {
    let fits = |(byte, form): (u8, u8)| match form {
        b'-' => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    (MIN_START..=FORM.len()).contains(&text.len()) && text.bytes().zip(FORM.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_lengths() {
        for text in [
            "8a4d1f3c-0b51-4c8e-9d57-3F2A6B1C0E01",
            "8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e0",
            "8a4d1f3c-",
            "8a4d",
        ] {
            assert!(is_uuid_start(text), "{text}");
        }
        for text in [
            "",
            "8a4",
            "8a4-",
            "8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01-",
            "8a4d1f3c0b514c8e9d573f2a6b1c0e01",
            "8a4d1f3g-0b51-4c8e-9d57-3f2a6b1c0e01",
        ] {
            assert!(!is_uuid_start(text), "{text}");
        }
    }
}
