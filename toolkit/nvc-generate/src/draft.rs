//! Holds edits before they are rendered: their hooks are names and arguments.
//!
//! Hooks are selected, compared and merged by name. Only rendering makes command lines of them.

use std::collections::HashSet;

use nvc_cdi::{Device, Edits};
use nvc_program::hook_names;

use crate::hook_program::HookProgram;

/// The version of its arguments.
const VERSION: &str = "--version=1";

/// The hooks that it replaces.
const PARTS: [&str; 9] = [
    hook_names::CREATE_SYMLINKS,
    hook_names::CREATE_SONAME_SYMLINKS,
    hook_names::ENABLE_CUDA_COMPAT,
    hook_names::UPDATE_LDCACHE,
    hook_names::DISABLE_NODE_MODIFICATION,
    hook_names::FILTER_DRIVER_PROC,
    hook_names::UPDATE_PROFILE,
    hook_names::MOUNT_SOCKETS,
    "discover",
];

/// A hook of nvidia-cdi-hook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DraftHook {
    pub(crate) name: &'static str,
    pub(crate) arguments: Vec<String>,
}

impl DraftHook {
    pub(crate) fn new(name: &'static str, arguments: impl Into<Vec<String>>) -> Self {
        let arguments = arguments.into();
        Self { name, arguments }
    }

    /// Returns its arguments as the merged hook's: they keep their names, and a hook without arguments becomes a flag.
    fn as_part(&self) -> Vec<String> {
        if self.arguments.is_empty() {
            vec![format!("--{}", self.name)]
        } else {
            self.arguments.clone()
        }
    }
}

/// Edits that are not rendered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// All but hooks.
    pub(crate) edits: Edits,
    pub(crate) hooks: Vec<DraftHook>,
}

impl From<Edits> for Draft {
    fn from(edits: Edits) -> Self {
        let hooks = Vec::new();
        Self { edits, hooks }
    }
}

impl Draft {
    /// Adds an environment variable, given as `NAME=VALUE`.
    pub fn add_variable(&mut self, entry: &str) {
        self.edits.env.push(entry.into());
    }

    pub(crate) fn add_hook(&mut self, name: &'static str, arguments: impl Into<Vec<String>>) {
        self.hooks.push(DraftHook::new(name, arguments));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.hooks.is_empty()
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.edits.append(&other.edits);
        self.hooks.extend_from_slice(&other.hooks);
    }

    /// Joins the hooks that create links into the first of them, each link once: a hook is a process at every start.
    pub(crate) fn join_links(&mut self) {
        let is_links = |hook: &DraftHook| hook.name == hook_names::CREATE_SYMLINKS;
        let Some(first) = self.hooks.iter().position(is_links) else {
            return;
        };
        let (links, mut others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.hooks)
            .into_iter()
            .partition(is_links);
        let mut seen = HashSet::new();
        let mut arguments = Vec::new();
        // Each link is an option and its value.
        for pair in links.iter().flat_map(|hook| hook.arguments.chunks(2)) {
            if seen.insert(pair) {
                arguments.extend_from_slice(pair);
            }
        }
        let joined = DraftHook::new(hook_names::CREATE_SYMLINKS, arguments);
        others.insert(first, joined);
        self.hooks = others;
    }

    /// Returns the edits, whose hooks run a program.
    pub fn render(self, program: &HookProgram) -> Edits {
        let Self { mut edits, hooks } = self;
        let hooks = hooks.into_iter();
        edits
            .hooks
            .extend(hooks.map(|hook| program.hook(hook.name, hook.arguments)));
        edits
    }
}

/// A device of a specification that is not rendered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DraftDevice {
    pub(crate) name: String,
    pub(crate) draft: Draft,
}

impl DraftDevice {
    pub(crate) fn new(name: impl Into<String>, draft: impl Into<Draft>) -> Self {
        let (name, draft) = (name.into(), draft.into());
        Self { name, draft }
    }

    pub(crate) fn render(self, program: &HookProgram) -> Device {
        Device {
            name: self.name,
            container_edits: self.draft.render(program),
            ..Device::default()
        }
    }
}

/// Merges hooks into one, each once; those that need an own process stay, after the merged one.
pub fn merge(all: &mut [Draft]) {
    let mut seen = HashSet::new();
    let mut words = vec![VERSION.to_owned()];
    for draft in all.iter_mut() {
        let (parts, others): (Vec<_>, Vec<_>) = std::mem::take(&mut draft.hooks)
            .into_iter()
            .partition(|hook| PARTS.contains(&hook.name));
        draft.hooks = others;
        for part in parts {
            if !seen.contains(&part) {
                words.extend(part.as_part());
                seen.insert(part);
            }
        }
    }
    if let Some(first) = all.first_mut().filter(|_| !seen.is_empty()) {
        first
            .hooks
            .insert(0, DraftHook::new(hook_names::MERGED, words));
    }
}

/// Puts an option before each value.
pub(crate) fn repeated(
    option: &str,
    values: impl IntoIterator<Item = impl Into<String>>,
) -> Vec<String> {
    let pairs = values.into_iter();
    let pairs = pairs.flat_map(|value| [option.to_owned(), value.into()]);
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(hooks: &[(&'static str, &[&str])]) -> Draft {
        let mut draft = Draft::default();
        for (name, words) in hooks {
            let words = words.iter().map(|word| (*word).to_owned());
            draft.add_hook(name, words.collect::<Vec<_>>());
        }
        draft
    }

    #[test]
    fn one_hook_is_made_of_all() {
        let links = ("create-symlinks", &["--link", "a::/b"][..]);
        let chmod = ("chmod", &["--mode", "755", "--path", "/x"][..]);
        let mut all = [
            draft(&[links]),
            draft(&[
                links,
                chmod,
                ("enable-cuda-compat", &["--host-driver-version=5"]),
                ("update-ldcache", &["--folder", "/l"]),
                ("filter-driver-proc", &[]),
            ]),
        ];
        merge(&mut all);
        let merged = [
            "--version=1",
            "--link",
            "a::/b",
            "--host-driver-version=5",
            "--folder",
            "/l",
            "--filter-driver-proc",
        ];
        assert_eq!(all, [draft(&[("merged", &merged)]), draft(&[chmod])]);
    }

    #[test]
    fn links_come_from_one_hook_each_once() {
        let chmod = ("chmod", &["--mode", "755"][..]);
        let cache = ("update-ldcache", &["--folder", "/l"][..]);
        let (a, b) = (["--link", "a::/a"], ["--link", "b::/b"]);
        let mut all = draft(&[
            chmod,
            ("create-symlinks", &a),
            cache,
            ("create-symlinks", &[a, b].concat()),
        ]);
        all.join_links();
        let both = [a, b].concat();
        assert_eq!(all, draft(&[chmod, ("create-symlinks", &both), cache]));
        let mut none = draft(&[cache]);
        none.join_links();
        assert_eq!(none, draft(&[cache]));
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let mut all = [Draft::default()];
        merge(&mut all);
        assert!(all[0].is_empty());
        merge(&mut []);
    }

    /// An argument that is a hook's name, or `hook`, is no hook: nothing is read from command lines.
    #[test]
    fn only_the_name_says_which_hook_it_is() {
        let odd = ("chmod", &["hook", "create-symlinks"][..]);
        let mut all = [draft(&[odd])];
        merge(&mut all);
        assert_eq!(all, [draft(&[odd])]);
        let [draft] = all;
        let path = "/usr/bin/nvidia-ctk".to_owned();
        let edits = draft.render(&HookProgram { path });
        let words = "nvidia-ctk hook chmod hook create-symlinks";
        assert_eq!(edits.hooks[0].args.join(" "), words);
    }
}
