//! Selects the hooks of specifications, with upstream's names and arguments.

use std::collections::{BTreeSet, HashSet};

pub use crate::hook_program::HookProgram;
use nvc_cdi::{Edits, Hook};
use nvc_program::hook_names;

/// Hooks that are disabled by default.
const OFF: [&str; 1] = [hook_names::CHMOD];

/// The version of its arguments.
const VERSION: &str = "--version=1";

/// The hooks that it replaces.
const PARTS: [&str; 8] = [
    hook_names::CREATE_SYMLINKS,
    hook_names::CREATE_SONAME_SYMLINKS,
    hook_names::ENABLE_CUDA_COMPAT,
    hook_names::UPDATE_LDCACHE,
    hook_names::DISABLE_NODE_MODIFICATION,
    hook_names::FILTER_DRIVER_PROC,
    hook_names::UPDATE_PROFILE,
    "discover",
];

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
}

impl Hooks {
    /// Adds a hook, unless it is disabled.
    pub(super) fn add(&self, name: &str, arguments: Vec<String>, edits: &mut Edits) {
        if !self.is_off(name) {
            edits.hooks.push(self.program.hook(name, arguments));
        }
    }

    /// Returns true if a hook is disabled.
    pub(super) fn is_off(&self, name: &str) -> bool {
        let is_off =
            OFF.contains(&name) || self.disabled.contains(name) || self.disabled.contains("all");
        is_off && !self.enabled.contains(name)
    }
}

/// Merges the hooks of `program` into one, each once; others stay unchanged, after the merged one.
pub fn merge(all: &mut [Edits], program: &HookProgram) {
    let mut parts: Vec<Hook> = Vec::new();
    for edits in all.iter_mut() {
        let (ours, others) = std::mem::take(&mut edits.hooks)
            .into_iter()
            .partition(|hook| part(hook, program).is_some());
        edits.hooks = others;
        parts.extend(ours);
    }
    let Some(first) = all.first_mut().filter(|_| !parts.is_empty()) else {
        return;
    };
    let mut seen = HashSet::new();
    let once = parts.iter().filter(|hook| seen.insert(*hook));
    let words = once.filter_map(|hook| part(hook, program)).flatten();
    let words = std::iter::once(VERSION.to_owned()).chain(words);
    first
        .hooks
        .insert(0, program.hook(hook_names::MERGED, words));
}

/// Returns the merged hook's arguments for a hook that it replaces: arguments keep their names; a hook without arguments
/// becomes a flag. Returns None for other hooks.
fn part(hook: &Hook, program: &HookProgram) -> Option<Vec<String>> {
    let pattern = program.hook("", []);
    let is_ours = hook.path == pattern.path && hook.hook_name == pattern.hook_name;
    let words = hook.args.get(pattern.args.len() - 1..)?;
    let (name, rest) = words.split_first()?;
    let is_part = is_ours && PARTS.contains(&name.as_str());
    is_part.then(|| match rest {
        [] => vec![format!("--{name}")],
        rest => rest.to_vec(),
    })
}

/// Puts an option before each value.
pub(super) fn repeated(option: &str, values: &[String]) -> Vec<String> {
    let pairs = values
        .iter()
        .flat_map(|value| [option.to_string(), value.clone()]);
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(path: &str, words: &str) -> Hook {
        Hook {
            hook_name: "createContainer".into(),
            path: path.into(),
            args: words.split(' ').map(String::from).collect(),
            env: vec!["NVIDIA_CTK_DEBUG=false".into()],
            timeout: None,
        }
    }

    fn edits(hooks: Vec<Hook>) -> Edits {
        Edits {
            hooks,
            ..Edits::default()
        }
    }

    #[test]
    fn one_hook_is_made_of_all() {
        const PATH: &str = "/usr/bin/nvidia-cdi-hook";
        let links = hook(PATH, "nvidia-cdi-hook create-symlinks --link a::/b");
        let foreign = hook("/opt/x", "x create-symlinks");
        let chmod = hook(PATH, "nvidia-cdi-hook chmod --mode 755 --path /x");
        let mut all = [
            edits(vec![foreign.clone(), links.clone()]),
            edits(vec![
                links,
                chmod.clone(),
                hook(
                    PATH,
                    "nvidia-cdi-hook enable-cuda-compat --host-driver-version=5",
                ),
                hook(PATH, "nvidia-cdi-hook update-ldcache --folder /l"),
                hook(PATH, "nvidia-cdi-hook filter-driver-proc"),
            ]),
        ];
        let program = HookProgram { path: PATH.into() };
        merge(&mut all, &program);
        let merged = "nvidia-cdi-hook merged --version=1 --link a::/b --host-driver-version=5 --folder /l --filter-driver-proc";
        assert_eq!(all[0].hooks, [hook(PATH, merged), foreign]);
        assert_eq!(all[1].hooks, [chmod]);
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let mut all = [edits(Vec::new())];
        let program = HookProgram { path: "/x".into() };
        merge(&mut all, &program);
        assert!(all[0].hooks.is_empty());
        merge(&mut [], &program);
    }
}
