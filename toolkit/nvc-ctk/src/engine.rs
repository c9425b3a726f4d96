//! Registers the NVIDIA runtime with container engines, and removes it again.
//!
//! Users' files are edited, not rewritten: comments, order and unknown keys are kept, files that cannot be parsed stay
//! unchanged, and undo restores the original bytes. Each engine's module is pure: texts in, [`Change`]s out; [`change`]
//! applies them, and [`undo`] stores the information that a text does not contain. [`notes`] remembers what was
//! registered, so that removing the package undoes it.

pub(crate) mod change;
pub(crate) mod containerd;
pub(crate) mod crio;
pub(crate) mod docker;
pub(crate) mod edits;
pub(crate) mod notes;
pub(crate) mod oci_hook;
pub(crate) mod program;
pub(crate) mod record;
pub(crate) mod undo;

mod tables;

use std::path::Path;

pub(crate) use change::Change;

/// The runtime to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runtime {
    /// The name by which containers request it.
    pub(crate) name: String,
    /// The program.
    pub(crate) path: String,
    /// Make it the default for containers that request no runtime.
    pub(crate) set_as_default: bool,
    /// Let the engine resolve CDI names itself.
    pub(crate) enable_cdi: bool,
}

/// The files of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    /// The main file.
    pub(crate) path: &'a Path,
    /// Its text; None if it is missing.
    pub(crate) text: Option<&'a str>,
    /// The drop-in; None: edit the main file.
    pub(crate) drop_in: Option<&'a Path>,
    /// The text of that file.
    pub(crate) drop_in_text: Option<&'a str>,
    /// The engine's own dump of its configuration, if available.
    pub(crate) dumped: Option<&'a str>,
    /// True if this containerd drops its built-in runtime when the section names another one, as 1.x does. Without its
    /// default runtime the CRI plugin does not load.
    pub(crate) drops_default: bool,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod any_tests;
#[cfg(test)]
mod tests;
