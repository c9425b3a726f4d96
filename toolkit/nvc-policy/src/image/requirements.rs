//! Collects a container's requirements on the driver and on its GPUs.

use nvc_program::requirements;

use super::{Environment, Error, legacy};

/// Returns the requirements of a container, in libnvc's language.
///
/// # Errors
/// An old image has an invalid CUDA version.
pub fn of(environment: &Environment, disabled: bool) -> Result<Vec<String>, Error> {
    if disabled || requirements::are_disabled(environment.iter()) {
        return Ok(Vec::new());
    }
    let found = requirements::of(environment.iter(), true).into_iter();
    let mut found: Vec<String> = found.map(str::to_owned).collect();
    if legacy::is_legacy(environment) {
        let version = legacy::cuda_version(environment)?;
        found.push(format!("cuda>={version}"));
    }
    Ok(found)
}
