//! Adds CDI devices to a container: those of specification files, or of a specification generated for it.

use libnvc::messages::Level;
use nvc_cdi::Registry;
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::image::qualified::{self, AUTOMATIC};
use nvc_policy::image::{Container, Policy, Wish};
use nvc_policy::mode::Mode;

use crate::automatic;
use crate::create::EditError;
use crate::give::give;
use crate::log::Log;

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
    let names = qualified::names(&wish.devices, default_kind);
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
