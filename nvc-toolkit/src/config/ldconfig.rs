//! Decides which ldconfig updates a container's library cache.
//!
//! An `@` in front says that the path is one of the host. Upstream's packages write `@/sbin/ldconfig` into every
//! configuration, so that value does not show that anybody chose it; `program:@/sbin/ldconfig` does.

use super::{Config, Error};

/// What an administrator may write in front of a path to insist on the program.
const PROGRAM: &str = "program:";

/// An ldconfig for nvidia-container-cli.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ldconfig {
    /// The administrator chose none: ours updates the cache itself where that is safe.
    Auto,
    /// This program; a leading `@` says that it is the host's.
    Program(String),
}

/// Checks that the file allows the ldconfig that it names.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let Some(value) = config.cli.ldconfig.as_deref() else {
        return Ok(());
    };
    let path = value.strip_prefix(PROGRAM).unwrap_or(value);
    if path.starts_with('@') || config.features.allow_ldconfig_from_container {
        return Ok(());
    }
    Err(Error::Value(format!(
        "nvidia-container-cli.ldconfig value {value:?} is not host-relative (does not start with a '@')"
    )))
}

/// The value for a nvidia-container-cli that is not ours; `exists` says whether the host has a file.
pub fn for_program(config: &Config, exists: impl Fn(&str) -> bool) -> String {
    let value = config.cli.ldconfig.as_deref().unwrap_or("@/sbin/ldconfig");
    let value = value.strip_prefix(PROGRAM).unwrap_or(value);
    let Some(path) = value.strip_prefix('@') else {
        return value.to_owned();
    };
    // On some distributions ldconfig is a script, and the program has another name.
    let plain = path.strip_suffix(".real").unwrap_or(path);
    let real = format!("{plain}.real");
    format!("@{}", if exists(&real) { &real } else { plain })
}

/// The choice for our own library.
pub fn for_library(config: &Config, exists: impl Fn(&str) -> bool) -> Ldconfig {
    match config.cli.ldconfig.as_deref() {
        None | Some("@/sbin/ldconfig" | "@/sbin/ldconfig.real") => Ldconfig::Auto,
        Some(_) => Ldconfig::Program(for_program(config, exists)),
    }
}
