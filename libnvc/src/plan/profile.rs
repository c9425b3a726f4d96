//! Generates the application profile that limits EGL to the container's GPUs.
//!
//! EGL enumerates every GPU of the machine. The setting `EGLVisibleDGPUDevices`, a bit mask of minor numbers, hides
//! those without a node in the container.

/// The directory with precedence over the image's own profiles.
pub(crate) const DIRECTORY: &str = "/etc/nvidia/nvidia-application-profiles-rc.d";
/// File name of our profile.
pub(crate) const FILE: &str = "10-container.conf";
/// Permission bits of directory and file.
pub(crate) const MODE: u32 = 0o555;

/// Returns a profile's text with one more GPU visible; None if the text has no mask.
///
/// The container may have written the text, so time and memory must be linear in its length.
pub(crate) fn with_visible(old: &str, minor: u32) -> Option<String> {
    let (_, rest) = old.split_once("0x")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit());
    let (mask, _) = rest.split_at(end.unwrap_or(rest.len()));
    let digits: Option<Vec<u32>> = mask.chars().rev().map(|c| c.to_digit(16)).collect();
    let mut digits = digits.filter(|digits| !digits.is_empty())?;
    show_in(&mut digits, minor);
    Some(text(&written(&digits)))
}

/// Returns the profile for a hexadecimal mask.
pub(crate) fn text(mask: &str) -> String {
    format!(
        "{{ \"profiles\": [{{\"name\": \"_container_\", \"settings\": [\"EGLVisibleDGPUDevices\", 0x{mask}]}}], \
         \"rules\": [{{\"pattern\": [], \"profile\": \"_container_\"}}]}}"
    )
}

/// Returns the profile that upstream's hook writes to a file.
pub(crate) fn compact(mask: &str) -> String {
    text(mask).replace(' ', "")
}

/// Returns minor numbers as a hexadecimal bit mask of any length.
pub(crate) fn mask(minors: &[u32]) -> String {
    let mut digits = Vec::new();
    for minor in minors {
        show_in(&mut digits, *minor);
    }
    written(&digits)
}

/// Sets a bit in a mask whose digits are stored lowest first.
fn show_in(digits: &mut Vec<u32>, minor: u32) {
    let at = minor as usize / 4;
    if digits.len() <= at {
        digits.resize(at + 1, 0);
    }
    if let Some(digit) = digits.get_mut(at) {
        *digit |= 1 << (minor % 4);
    }
}

/// Formats a mask without leading zeros.
fn written(digits: &[u32]) -> String {
    let length = digits.iter().rposition(|digit| *digit != 0).unwrap_or(0) + 1;
    let highest_first = digits.iter().take(length).rev();
    let text: String = highest_first
        .filter_map(|digit| char::from_digit(*digit, 16))
        .collect();
    if text.is_empty() { "0".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_text_is_upstreams() {
        let text = r#"{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x9]}],"rules":[{"pattern":[],"profile":"_container_"}]}"#;
        assert_eq!(compact(&mask(&[0, 3])), text);
    }

    #[test]
    fn masks_have_any_length() {
        assert_eq!(mask(&[0]), "1");
        assert_eq!(mask(&[0, 1, 5]), "23");
        assert_eq!(mask(&[64]), "10000000000000000");
        assert_eq!(mask(&[]), "0");
    }

    /// Guards against quadratic time in the length or the number of bits.
    #[test]
    fn a_mask_that_the_container_wrote_may_be_long() {
        let old = text(&"f".repeat(1 << 20));
        assert_eq!(with_visible(&old, 7), Some(old));
        let zeros = text(&"0".repeat(1 << 20));
        assert_eq!(with_visible(&zeros, 7), Some(text("80")));
    }

    #[test]
    fn profiles_grow() {
        let one = text(&mask(&[0]));
        assert_eq!(
            one,
            r#"{ "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x1]}], "rules": [{"pattern": [], "profile": "_container_"}]}"#
        );
        assert_eq!(with_visible(&one, 1), Some(text("3")));
        assert_eq!(with_visible(&one, 0), Some(one));
        assert_eq!(with_visible("{}", 1), None);
        assert_eq!(with_visible("0xg", 1), None);
    }
}
