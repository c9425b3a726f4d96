//! Checks an image's requirements on each GPU of a Jetson, whose driver does not provide all facts.

use libnvc::Result;
use libnvc::host::{DriverVersions, Gpu};
use libnvc::require::{self, Requirement};

/// Properties of a Jetson's GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The CUDA version of the driver, if known.
    pub cuda: Option<String>,
    /// The GPU's architecture, if known.
    pub arch: Option<String>,
}

/// Checks every requirement.
///
/// # Errors
/// The first requirement that is not met or malformed.
pub fn check(requirements: &[String], facts: &Facts) -> Result<()> {
    let requirements: Vec<_> = requirements.iter().map(Requirement::tolerant).collect();
    let versions = DriverVersions {
        driver: String::new(),
        cuda: facts.cuda.clone().unwrap_or_default(),
    };
    let gpu = Gpu {
        arch: facts.arch.clone().unwrap_or_default(),
        ..Gpu::default()
    };
    require::check(&requirements, &versions, &[&gpu])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_jetson_does_not_say_meets_nothing() {
        let orin = Facts {
            cuda: Some("12.2".into()),
            arch: Some("8.7".into()),
        };
        let of = |text: &str, facts: &Facts| check(&[text.to_owned()], facts);
        for text in ["cuda>=12.0,arch>=8", "frob=x"] {
            assert!(of(text, &orin).is_ok(), "{text}");
        }
        for text in ["cuda>=13", "driver>=1", "brand=tesla"] {
            let error = of(text, &orin).unwrap_err();
            assert!(error.message().contains("unsatisfied condition"), "{text}");
        }
        assert!(of("cuda>=12.0", &Facts::default()).is_err());
    }
}
