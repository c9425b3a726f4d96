//! Selects the hooks of specifications, with upstream's names, and what they do of a plan.

use std::collections::{BTreeSet, HashSet};

use libnvc::plan::{Intent, ProcDevices, What};
use nvc_program::hook_names;

pub use crate::hook_program::HookProgram;

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
    /// One process does the work of all hooks.
    pub merged: bool,
    /// The program is ours, of this build: it can mount daemons' sockets, and no link of an image confuses it.
    pub is_ours: bool,
}

impl Hooks {
    /// Returns true if a hook is disabled.
    pub fn is_off(&self, name: &str) -> bool {
        let is_off =
            OFF.contains(&name) || self.disabled.contains(name) || self.disabled.contains("all");
        is_off && !self.enabled.contains(name)
    }

    /// Returns what a hook does of a plan: everything but nodes and variables, and without what is disabled. Each intent
    /// once.
    pub fn intents(&self, plan: &[Intent]) -> Vec<Intent> {
        let mut seen = HashSet::new();
        let enabled = plan.iter().filter_map(|intent| self.enabled(intent));
        enabled
            .filter(|intent| seen.insert(intent.clone()))
            .collect()
    }

    fn enabled(&self, intent: &Intent) -> Option<Intent> {
        let mut intent = intent.clone();
        let is_on = match &mut intent.what {
            What::Device(_) | What::Env(_) => false,
            What::Mount(_) => true,
            What::Link(_) | What::Alias(_) => !self.is_off(hook_names::CREATE_SYMLINKS),
            What::LibraryPath(_) => !self.is_off(hook_names::UPDATE_LDCACHE),
            What::CudaCompat(_) => !self.is_off(hook_names::ENABLE_CUDA_COMPAT),
            What::EglProfile(_) => !self.is_off(hook_names::UPDATE_PROFILE),
            // Older programs of upstream fail if they do not know a hook.
            What::Sockets(_) => self.is_ours && !self.is_off(hook_names::MOUNT_SOCKETS),
            What::Mode(_) => !self.is_off(hook_names::CHMOD),
            What::DriverProc(shown) => {
                shown.no_new_nodes &= !self.is_off(hook_names::DISABLE_NODE_MODIFICATION);
                if self.is_off(hook_names::FILTER_DRIVER_PROC) {
                    shown.devices = ProcDevices::All;
                }
                shown.no_new_nodes || shown.devices != ProcDevices::All
            }
        };
        is_on.then_some(intent)
    }
}
