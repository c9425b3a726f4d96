//! Selects the hooks of specifications, with upstream's names and arguments.

use std::collections::BTreeSet;

use crate::draft::Draft;
pub use crate::hook_program::HookProgram;
use nvc_program::hook_names;

/// Hooks that are disabled by default.
const OFF: [&str; 1] = [hook_names::CHMOD];

/// Selection of hooks.
#[derive(Clone, Debug)]
pub struct Hooks {
    pub program: HookProgram,
    /// Disabled hooks; `all` for all of them.
    pub disabled: BTreeSet<String>,
    /// Enabled hooks among those disabled by default.
    pub enabled: BTreeSet<String>,
    /// Merge all hooks into one process.
    pub merged: bool,
    /// The program is ours, of this build: it can mount daemons' sockets, and no link of an image confuses it.
    pub is_ours: bool,
}

impl Hooks {
    /// Adds a hook, unless it is disabled.
    pub(super) fn add(&self, name: &'static str, arguments: Vec<String>, draft: &mut Draft) {
        if !self.is_off(name) {
            draft.add_hook(name, arguments);
        }
    }

    /// Returns true if a hook is disabled.
    pub(super) fn is_off(&self, name: &str) -> bool {
        let is_off =
            OFF.contains(&name) || self.disabled.contains(name) || self.disabled.contains("all");
        is_off && !self.enabled.contains(name)
    }
}
