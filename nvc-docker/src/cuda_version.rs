//! Compares the CUDA version of an image with the driver's.

use libnvc::{Error, ErrorKind, Result};

/// A CUDA version: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i64, pub i64);

impl CudaVersion {
    /// Converts NVML's and CUDA's number: 12020 is 12.2.
    pub fn from_number(number: i32) -> Self {
        Self(i64::from(number / 1000), i64::from(number % 100 / 10))
    }

    /// Parses `MAJOR.MINOR`; ignores the rest.
    ///
    /// # Errors
    /// `expected integer`, `unexpected EOF`, `input does not match format`.
    pub fn parse(text: &str) -> Result<Self> {
        let (major, rest) = integer(text)?;
        let rest = match rest.strip_prefix('.') {
            Some(rest) => rest,
            None if rest.is_empty() => {
                return Err(Error::new(ErrorKind::Malformed, "unexpected EOF"));
            }
            None => {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    "input does not match format",
                ));
            }
        };
        let (minor, _) = integer(rest)?;
        Ok(Self(major, minor))
    }
}

impl std::fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Checks that the driver is new enough for an image with this label; an empty label has no requirement.
///
/// # Errors
/// `unsupported CUDA version: driver 7.0 < image 8.0.61`, and those of [`CudaVersion::parse`].
pub fn check(driver: CudaVersion, label: &str) -> Result<()> {
    let label = label.trim();
    if label.is_empty() {
        return Ok(());
    }
    let wanted = CudaVersion::parse(label).map_err(|failure| {
        failure.hint(format!(
            "the image's label com.nvidia.cuda.version is \"{label}\"; it must be a version, as in 12.4"
        ))
    })?;
    if wanted > driver {
        return Err(Error::new(
            ErrorKind::Unsatisfied,
            format!("unsupported CUDA version: driver {driver} < image {label}"),
        )
        .hint("update the driver, or use an image for an earlier CUDA version"));
    }
    Ok(())
}

/// Parses a decimal number at the start of a text, after blanks; returns it with the rest.
fn integer(text: &str) -> Result<(i64, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    if text.is_empty() {
        return Err(Error::new(ErrorKind::Malformed, "unexpected EOF"));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let (number, rest) = text.split_at(text.len() - digits.len() + end);
    match number.parse() {
        Ok(number) if end > 0 => Ok((number, rest)),
        _ => Err(Error::new(ErrorKind::Malformed, "expected integer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(driver: CudaVersion, label: &str) -> String {
        check(driver, label).map_or_else(|failure| failure.message(), |()| "fits".into())
    }

    #[test]
    fn labels() {
        for (label, words) in [
            ("", "fits"),
            (" \n", "fits"),
            ("7.5", "fits"),
            ("8.0.61", "fits"),
            ("8.0", "fits"),
            ("8.1", "unsupported CUDA version: driver 8.0 < image 8.1"),
            (
                "9.0.176",
                "unsupported CUDA version: driver 8.0 < image 9.0.176",
            ),
            ("8", "unexpected EOF"),
            ("8.", "unexpected EOF"),
            ("x", "expected integer"),
            ("8.x", "expected integer"),
            ("8-0", "input does not match format"),
            ("99999999999999999999.0", "expected integer"),
        ] {
            assert_eq!(said(CudaVersion(8, 0), label), words, "{label:?}");
        }
    }

    #[test]
    fn parts_are_numbers() {
        let newer = "unsupported CUDA version: driver 11.8 < image 11.10";
        assert_eq!(said(CudaVersion(11, 8), "11.10"), newer);
        assert_eq!(said(CudaVersion(11, 10), "11.8"), "fits");
    }

    #[test]
    fn numbers_of_the_driver() {
        for (number, text) in [
            (7050, "7.5"),
            (8000, "8.0"),
            (11080, "11.8"),
            (12020, "12.2"),
            (0, "0.0"),
        ] {
            assert_eq!(CudaVersion::from_number(number).to_string(), text);
        }
    }
}
