//! Writes the hooks of specifications, as upstream names them and their arguments.

use std::collections::BTreeSet;

use crate::cdi::{Edits, Hook};

/// Hooks that are off unless they are asked for.
const OFF: [&str; 1] = ["chmod"];

/// The program that hooks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookProgram {
    /// Where it is.
    pub path: String,
}

/// Which hooks a specification has.
#[derive(Clone, Debug)]
pub struct Hooks {
    /// The program.
    pub program: HookProgram,
    /// Hooks that are left out; `all` for all of them.
    pub disabled: BTreeSet<String>,
    /// Hooks that are put in although they are off.
    pub enabled: BTreeSet<String>,
    /// All in one process.
    pub merged: bool,
}

impl HookProgram {
    /// The hook of a name.
    pub(super) fn hook(&self, name: &str, arguments: Vec<String>) -> Hook {
        let base = self.path.rsplit('/').next().unwrap_or_default();
        let words: &[&str] = match base {
            "nvidia-ctk" => &["nvidia-ctk", "hook"],
            _ => &["nvidia-cdi-hook"],
        };
        let words = words.iter().copied().chain([name]).map(String::from);
        Hook {
            hook_name: "createContainer".into(),
            path: self.path.clone(),
            args: words.chain(arguments).collect(),
            env: vec!["NVIDIA_CTK_DEBUG=false".into()],
            timeout: None,
        }
    }
}

impl Hooks {
    /// Adds a hook, unless it is off.
    pub(super) fn add(&self, name: &str, arguments: Vec<String>, edits: &mut Edits) {
        let is_off =
            OFF.contains(&name) || self.disabled.contains(name) || self.disabled.contains("all");
        if self.enabled.contains(name) || !is_off {
            edits.hooks.push(self.program.hook(name, arguments));
        }
    }
}

/// An option before each of some values.
pub(super) fn repeated(option: &str, values: &[String]) -> Vec<String> {
    let pairs = values
        .iter()
        .flat_map(|value| [option.to_string(), value.clone()]);
    pairs.collect()
}
