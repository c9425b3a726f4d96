//! Recognises CUDA images from before the variables for devices existed, and reads their CUDA version.

use super::{Environment, Error};

const CUDA_VERSION: &str = "CUDA_VERSION";

/// Returns true if an image is that old: it has a CUDA version, but no requirement.
pub(super) fn is_legacy(environment: &Environment) -> bool {
    environment.has(CUDA_VERSION) && !environment.has("NVIDIA_REQUIRE_CUDA")
}

/// Returns `MAJOR.MINOR` of the image's CUDA version.
///
/// # Errors
/// It is not a version.
pub(super) fn cuda_version(environment: &Environment) -> Result<String, Error> {
    let text = environment.get(CUDA_VERSION).unwrap_or_default();
    major_minor(text).ok_or_else(|| Error::CudaVersion(text.to_owned()))
}

/// Parses `[v]A`, `[v]A.B` or `[v]A.B.C` with the suffixes that semantic versions allow after three parts.
fn major_minor(text: &str) -> Option<String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let core_end = text.find(['-', '+']).unwrap_or(text.len());
    let (core, suffix) = text.split_at(core_end);
    let parts: Vec<&str> = core.split('.').collect();
    let is_number = |part: &&str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part.len() == 1 || !part.starts_with('0'))
    };
    if parts.len() > 3 || !parts.iter().all(is_number) {
        return None;
    }
    if !suffix.is_empty() && (parts.len() != 3 || !is_suffix(suffix)) {
        return None;
    }
    let major: u32 = parts.first()?.parse().ok()?;
    let minor: u32 = parts.get(1).unwrap_or(&"0").parse().ok()?;
    Some(format!("{major}.{minor}"))
}

/// Returns true for a pre-release, a build or both.
fn is_suffix(suffix: &str) -> bool {
    let (pre_release, build) = match suffix.split_once('+') {
        Some((pre_release, build)) => (pre_release, Some(build)),
        None => (suffix, None),
    };
    let identifiers = |text: &str, numbers_are_plain: bool| {
        text.split('.').all(|part| {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !(numbers_are_plain && digits && part.len() > 1 && part.starts_with('0'))
        })
    };
    (pre_release.is_empty()
        || pre_release
            .strip_prefix('-')
            .is_some_and(|text| identifiers(text, true)))
        && build.is_none_or(|text| identifiers(text, false))
}

#[cfg(test)]
mod tests {
    use super::major_minor;

    #[test]
    fn versions_are_semantic() {
        let table = [
            ("9.0.176", Some("9.0")),
            ("11", Some("11.0")),
            ("v12.4", Some("12.4")),
            ("12.4.1-rc.1", Some("12.4")),
            ("12.4.1+build-7", Some("12.4")),
            ("12.4.1-rc+b", Some("12.4")),
            ("10.1.243.1", None),
            ("latest", None),
            ("", None),
            ("v", None),
            ("09.1", None),
            ("9.01", None),
            ("9.1-rc", None),
            ("9.1.0-", None),
            ("9.1.0-01", None),
            ("9.1.0+", None),
            (" 9.1", None),
            ("9.1 ", None),
            ("4294967296.0", None),
            (
                "4294967295.4294967295.99999999999999999999",
                Some("4294967295.4294967295"),
            ),
        ];
        for (text, expected) in table {
            assert_eq!(major_minor(text).as_deref(), expected, "{text}");
        }
    }
}
