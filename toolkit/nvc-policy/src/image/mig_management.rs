//! Decides in mode jit-cdi whether a container may configure or monitor the machine's MIG devices.

use libnvc::DeviceName;

use super::{Container, Environment, Error, MIG_CONFIG, MIG_MONITOR};

/// Returns true if a container asks for that, with a right to it or without.
pub fn is_requested(environment: &Environment) -> bool {
    let mut names = [MIG_CONFIG, MIG_MONITOR].into_iter();
    names.any(|name| environment.get(name).is_some_and(|value| !value.is_empty()))
}

/// Returns the capabilities that a container of these devices requests: `config`, `monitor`.
///
/// # Errors
/// A variable is not `all`; the container is not privileged; it is one of some MIG devices only.
pub fn requested(container: &Container, devices: &[&str]) -> Result<Vec<&'static str>, Error> {
    let mut found = Vec::new();
    for (variable, capability) in [(MIG_CONFIG, "config"), (MIG_MONITOR, "monitor")] {
        match container.environment.get(variable) {
            None | Some("") => {}
            Some(value) if value.eq_ignore_ascii_case("all") => found.push(capability),
            Some(value) => {
                let text = format!("invalid {variable} \"{value}\": only \"all\" is supported");
                return Err(Error::MigManagement(text));
            }
        }
    }
    if found.is_empty() {
        return Ok(found);
    }
    if !container.privileged {
        let text =
            format!("cannot set {MIG_CONFIG} or {MIG_MONITOR} in a non-privileged container");
        return Err(Error::MigManagement(text));
    }
    let is_all = devices.iter().any(|id| id.eq_ignore_ascii_case("all"));
    if !is_all && devices.iter().any(|id| is_mig(id)) {
        let text = "cannot request MIG config/monitor devices for a container scoped to specific MIG devices";
        return Err(Error::MigManagement(text.into()));
    }
    Ok(found)
}

/// Returns true for `MIG-…` and `GPU:MIG`, but not for a PCI address.
fn is_mig(id: &str) -> bool {
    match DeviceName::parse(id) {
        Some(DeviceName::Uuid(uuid)) => !uuid.starts_with(['G', 'g']),
        Some(DeviceName::Mig(..) | DeviceName::Instances(..)) => true,
        Some(DeviceName::Gpu(_) | DeviceName::Address(_)) | None => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::image::Environment;

    #[test]
    fn management_is_for_privileged_containers_of_whole_machines() {
        let of = |variables: &[&str], privileged, devices: &[&str]| {
            let container = Container {
                environment: Environment::new(variables.to_vec()).unwrap(),
                privileged,
                ..Container::default()
            };
            requested(&container, devices)
                .map_or_else(|error| error.to_string(), |all| all.join(" "))
        };
        let (config, monitor) = (
            "NVIDIA_MIG_CONFIG_DEVICES=all",
            "NVIDIA_MIG_MONITOR_DEVICES=All",
        );
        assert_eq!(of(&[config, monitor], true, &["all"]), "config monitor");
        assert_eq!(of(&[monitor], true, &["0", "00000000:3b:00.0"]), "monitor");
        assert_eq!(of(&[config], true, &["MIG-1", "all"]), "config");
        assert_eq!(of(&["NVIDIA_MIG_CONFIG_DEVICES="], false, &["0"]), "");
        assert_eq!(of(&[], false, &["MIG-1"]), "");
        assert_eq!(
            of(&["NVIDIA_MIG_CONFIG_DEVICES=0"], true, &["0"]),
            "invalid NVIDIA_MIG_CONFIG_DEVICES \"0\": only \"all\" is supported"
        );
        assert_eq!(
            of(&[monitor], false, &["0"]),
            "cannot set NVIDIA_MIG_CONFIG_DEVICES or NVIDIA_MIG_MONITOR_DEVICES in a non-privileged container"
        );
        for mig in ["MIG-1", "mig-1", "0:1"] {
            assert_eq!(
                of(&[config], true, &["1", mig]),
                "cannot request MIG config/monitor devices for a container scoped to specific MIG devices"
            );
        }
    }
}
