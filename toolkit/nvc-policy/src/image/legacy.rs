//! Recognises CUDA images from before the variables for devices existed, and reads their CUDA version.

use super::{Environment, Error};
use crate::semver::Version;

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

/// Returns the first two numbers of a semantic version.
fn major_minor(text: &str) -> Option<String> {
    let [major, minor, _] = Version::parse(text)?.numbers;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some(format!("{major}.{minor}"))
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
