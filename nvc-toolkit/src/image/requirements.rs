//! Reads what a container demands of the driver and of its GPUs.

use super::{Environment, Error, legacy};

/// The requirements of a container, in the language that libnvc evaluates.
///
/// # Errors
/// An old image names a CUDA version that is none.
pub fn of(environment: &Environment, disabled: bool) -> Result<Vec<String>, Error> {
    if disabled || is_disabled(environment) {
        return Ok(Vec::new());
    }
    let mut requirements: Vec<String> = environment
        .iter()
        .filter(|(name, _)| {
            // Jetson images say with this one which files they want.
            name.starts_with("NVIDIA_REQUIRE_") && !name.starts_with("NVIDIA_REQUIRE_JETPACK")
        })
        .map(|(_, value)| value.to_owned())
        .collect();
    if legacy::is_legacy(environment) {
        let version = legacy::cuda_version(environment).map_err(Error::CudaVersion)?;
        requirements.push(format!("cuda>={version}"));
    }
    Ok(requirements)
}

/// Whether the container itself says that nothing is to be checked.
fn is_disabled(environment: &Environment) -> bool {
    let value = environment
        .get("NVIDIA_DISABLE_REQUIRE")
        .unwrap_or_default();
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}
