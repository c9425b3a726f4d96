//! Collects a container's requirements on the driver and on its GPUs.

use super::{Environment, Error, legacy};

/// Returns the requirements of a container, in libnvc's language.
///
/// # Errors
/// An old image has an invalid CUDA version.
pub fn of(environment: &Environment, disabled: bool) -> Result<Vec<String>, Error> {
    if disabled || is_disabled(environment) {
        return Ok(Vec::new());
    }
    let mut requirements: Vec<String> = environment
        .iter()
        .filter(|(name, _)| {
            // Jetson images select files by this one.
            name.starts_with("NVIDIA_REQUIRE_") && !name.starts_with("NVIDIA_REQUIRE_JETPACK")
        })
        .map(|(_, value)| value.to_owned())
        .collect();
    if legacy::is_legacy(environment) {
        let version = legacy::cuda_version(environment)?;
        requirements.push(format!("cuda>={version}"));
    }
    Ok(requirements)
}

/// Returns true if the container disables requirements.
fn is_disabled(environment: &Environment) -> bool {
    let value = environment
        .get("NVIDIA_DISABLE_REQUIRE")
        .unwrap_or_default();
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}
