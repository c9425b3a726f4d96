//! Selects the ldconfig that updates a container's library cache.
//!
//! A leading `@` marks a host path. Upstream's packages write `@/sbin/ldconfig` into every configuration, so that value
//! does not express a choice of the administrator; `program:@/sbin/ldconfig` does.

use std::path::Path;

use libnvc::options::Ldconfig;

use super::keys::LDCONFIG;
use super::{Config, Error};

/// Prefix by which an administrator insists on the program.
const PROGRAM: &str = "program:";

/// Checks that the configured ldconfig is allowed by the file.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let Some(value) = config.cli.ldconfig.as_deref() else {
        return Ok(());
    };
    let path = value.strip_prefix(PROGRAM).unwrap_or(value);
    let is_hosts = !matches!(Ldconfig::parse(path.as_ref()), Ldconfig::Image(_));
    if is_hosts || config.features.allow_ldconfig_from_container {
        return Ok(());
    }
    Err(Error::Value(format!(
        "{LDCONFIG} value \"{value}\" is not host-relative (does not start with a '@'; auto needs no program)"
    )))
}

/// Returns the word for an nvidia-container-cli that is not ours; `exists` returns whether the host has a file.
pub fn for_program(config: &Config, exists: impl Fn(&str) -> bool) -> String {
    let value = config.cli.ldconfig.as_deref().unwrap_or("@/sbin/ldconfig");
    let value = value.strip_prefix(PROGRAM).unwrap_or(value);
    match Ldconfig::parse(value.as_ref()) {
        Ldconfig::Host(path) => {
            let exists = |path: &Path| exists(&path.to_string_lossy());
            Ldconfig::Host(Ldconfig::real(&path, exists)).to_string()
        }
        // Upstream's program would run a file of that name in the image.
        Ldconfig::Auto => "@auto".to_owned(),
        Ldconfig::Image(_) => value.to_owned(),
    }
}

/// Returns the path for our hooks, if a program of the host is chosen. `auto` has no word there: upstream's hooks refuse
/// it.
pub fn for_hooks(config: &Config) -> Option<String> {
    match for_library(config) {
        Ldconfig::Host(path) => Some(path.to_string_lossy().into_owned()),
        // The image's own is nvidia-container-cli's alone.
        Ldconfig::Auto | Ldconfig::Image(_) => None,
    }
}

/// Returns the choice for our own library.
pub fn for_library(config: &Config) -> Ldconfig {
    match config.cli.ldconfig.as_deref() {
        None | Some("@/sbin/ldconfig" | "@/sbin/ldconfig.real") => Ldconfig::Auto,
        Some(value) => Ldconfig::parse(value.strip_prefix(PROGRAM).unwrap_or(value).as_ref()),
    }
}
