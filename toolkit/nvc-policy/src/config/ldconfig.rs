//! Selects the ldconfig that updates a container's library cache.
//!
//! A leading `@` marks a host path. Upstream's packages write `@/sbin/ldconfig` into every configuration, so that value
//! does not express a choice of the administrator; `program:@/sbin/ldconfig` does.

use super::keys::LDCONFIG;
use super::{Config, Error};

/// Prefix by which an administrator insists on the program.
const PROGRAM: &str = "program:";

/// An ldconfig for nvidia-container-cli.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ldconfig {
    /// No choice: the builtin ldconfig is used if that is safe.
    Auto,
    /// This program; a leading `@` marks the host's.
    Program(String),
}

/// Checks that the configured ldconfig is allowed by the file.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let Some(value) = config.cli.ldconfig.as_deref() else {
        return Ok(());
    };
    let path = value.strip_prefix(PROGRAM).unwrap_or(value);
    if path.starts_with('@') || config.features.allow_ldconfig_from_container {
        return Ok(());
    }
    Err(Error::Value(format!(
        "{LDCONFIG} value \"{value}\" is not host-relative (does not start with a '@')"
    )))
}

/// Returns the value for an nvidia-container-cli that is not ours; `exists` returns whether the host has a file.
pub fn for_program(config: &Config, exists: impl Fn(&str) -> bool) -> String {
    let value = config.cli.ldconfig.as_deref().unwrap_or("@/sbin/ldconfig");
    let value = value.strip_prefix(PROGRAM).unwrap_or(value);
    let Some(path) = value.strip_prefix('@') else {
        return value.to_owned();
    };
    // On some distributions ldconfig is a wrapper script, and the program has another name.
    let plain = path.strip_suffix(".real").unwrap_or(path);
    let real = format!("{plain}.real");
    format!("@{}", if exists(&real) { &real } else { plain })
}

/// Returns the choice for our own library.
pub fn for_library(config: &Config, exists: impl Fn(&str) -> bool) -> Ldconfig {
    match config.cli.ldconfig.as_deref() {
        None | Some("@/sbin/ldconfig" | "@/sbin/ldconfig.real") => Ldconfig::Auto,
        Some(_) => Ldconfig::Program(for_program(config, exists)),
    }
}
