//! Adds CDI devices to a container: those of specification files, or of a specification generated for it.

use nvc_toolkit::cdi::Registry;
use nvc_toolkit::config::Config;
use nvc_toolkit::image::{Container, Devices, Policy, Wish, qualified};
use nvc_toolkit::mode::Mode;
use nvc_toolkit::oci::spec::Spec;
use nvc_toolkit::record::Level;

use crate::automatic;
use crate::create::EditError;
use crate::give::give;
use crate::log::Log;

/// The kind of devices with a generated specification.
const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

/// Adds the devices of `wish`.
pub(crate) fn modify(
    spec: &mut Spec,
    mode: Mode,
    wish: &Wish,
    container: &Container,
    policy: &Policy,
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    let default_kind = match mode {
        Mode::JitCdi => AUTOMATIC,
        _ => &config.runtime.cdi_default_kind,
    };
    let names = qualified_names(&wish.devices, default_kind);
    let automatic: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix(AUTOMATIC)?.strip_prefix('='))
        .collect();
    if automatic.is_empty() {
        return from_files(spec, &names, config, log);
    }
    if automatic.len() < names.len() {
        return Err(String::from(
            "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when requesting other CDI devices",
        )
        .into());
    }
    automatic::modify(spec, &automatic, container, policy, config, log)
}

/// Returns every name with its kind, without duplicates.
fn qualified_names(devices: &Devices, default_kind: &str) -> Vec<String> {
    let names = match devices {
        Devices::None => vec!["none"],
        some => some.names(),
    };
    let mut all: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let name = match qualified::is_qualified(name) {
            true => name.to_owned(),
            false => format!("{default_kind}={name}"),
        };
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

fn from_files(
    spec: &mut Spec,
    names: &[String],
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    let registry = Registry::load(&config.runtime.cdi_spec_dirs);
    let edits = registry.edits(names).map_err(|error| {
        for problem in registry.problems() {
            let (file, what) = (problem.path.display(), problem.error.message());
            log.write(Level::Warning, &format!("{file}: {what}"));
        }
        EditError::of("failed to inject CDI devices: ", &error)
    })?;
    give(spec, &mut [edits]).map_err(|what| format!("failed to inject CDI devices: {what}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_their_kind() {
        let names = |names: &[&str]| Devices::Names(names.iter().map(|&n| n.to_owned()).collect());
        let of = |devices: &Devices| qualified_names(devices, "nvidia.com/gpu").join(" ");
        assert_eq!(of(&Devices::All), "nvidia.com/gpu=all");
        assert_eq!(of(&Devices::None), "nvidia.com/gpu=none");
        assert_eq!(
            of(&names(&["1", "nvidia.com/gpu=1", "a.b/c=d"])),
            "nvidia.com/gpu=1 a.b/c=d"
        );
    }
}
