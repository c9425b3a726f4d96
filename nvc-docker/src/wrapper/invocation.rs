//! Describes an invocation of the wrapper: its words, and the variables that control it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use super::docker::Docker;
use super::host::PluginHost;
use super::line::CommandLine;

/// The parts of an invocation.
pub(super) struct Invocation<'a> {
    pub(super) words: &'a [OsString],
    pub(super) line: CommandLine,
    /// With the global options, for queries.
    pub(super) docker: Docker,
    /// Without them, because they are part of the passed-on command line.
    pub(super) bare: Docker,
    pub(super) place: PluginHost,
    pub(super) is_dry: bool,
}

/// Returns a variable's value; an empty one counts as unset.
pub(super) fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// Returns true if a variable is switched on.
pub(super) fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| value != "0")
}
