//! Registers the NVIDIA runtime with container engines, and removes it again.
//!
//! Users' files are edited, not rewritten: comments, order and unknown keys are kept, and files that cannot be parsed
//! stay unchanged. What is ours is seen, not remembered: an entry whose program is one of the toolkit's. Each engine's
//! module is pure: texts in, texts out; [`edits`] opens the files and writes them.

pub(crate) mod containerd;
pub(crate) mod crio;
pub(crate) mod daemon;
pub(crate) mod docker;
pub(crate) mod edits;
pub(crate) mod oci_hook;
pub(crate) mod program;
pub(crate) mod templates;

mod tables;

use std::path::{Path, PathBuf};

use libnvc::Result;
use nix::errno::Errno;
pub(crate) use nvc_hostfile::programs::matching;

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

/// A file and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Text {
    fn new(path: &Path, text: String) -> Self {
        let path = path.into();
        Self { path, text }
    }
}

/// The longest file that is read. The kernel's list of modules has 1 MiB.
const MAX_SIZE: usize = 4 << 20;

/// Reads a file that stays as it is; None if it is missing.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match nvc_hostfile::read(path, MAX_SIZE) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        read => nvc_hostfile::text(path, read?).map(Some),
    }
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
    /// The other files that the engine reads after the main file, in its order.
    pub(crate) others: &'a [Text],
    /// The engine's own dump of its configuration, if available.
    pub(crate) dumped: Option<&'a str>,
    /// True if this containerd drops its built-in runtime when the section names another one, as 1.x does. Without its
    /// default runtime the CRI plugin does not load.
    pub(crate) drops_default: bool,
}

/// Returns true if a runtime of this name, with this program, is to be removed.
pub(crate) type IsRemoved<'a> = dyn Fn(&str, &str) -> bool + 'a;

/// A text without some runtimes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The text; None if it has no setting left, which is the same as no file.
    pub(crate) text: Option<String>,
    /// The runtimes that it had.
    pub(crate) names: Vec<String>,
    /// True if one of them was the default.
    pub(crate) had_default: bool,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod any_tests;
#[cfg(test)]
mod tests;
