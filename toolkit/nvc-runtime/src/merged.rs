//! Merges a container's createContainer hooks into one: one process instead of six.

use std::collections::HashSet;
use std::path::Path;

use nvc_cdi::{Edits, Hook};

use crate::hook_program::{self, PROGRAM};

/// Version of the arguments.
const VERSION: &str = "--version=1";

/// Hooks that the merged hook replaces.
const PARTS: [&str; 7] = [
    "create-symlinks",
    "create-soname-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "filter-driver-proc",
    "update-application-profile",
];

/// Merges the hooks whose program is `program`, if that is ours: a foreign program would exit 0 and do nothing.
pub(crate) fn merge_if_ours(all: &mut [Edits], program: &Path) {
    if hook_program::is_ours(program) {
        merge(all, &program.to_string_lossy());
    }
}

/// Merges the hooks whose program is `program`; others stay unchanged, after the merged one.
fn merge(all: &mut [Edits], program: &str) {
    let mut parts: Vec<Hook> = Vec::new();
    for edits in all.iter_mut() {
        let (ours, others) = std::mem::take(&mut edits.hooks)
            .into_iter()
            .partition(|hook| is_part(hook, program));
        edits.hooks = others;
        parts.extend(ours);
    }
    let (Some(first), Some(pattern)) = (all.first_mut(), parts.first().cloned()) else {
        return;
    };
    let mut args: Vec<String> = [PROGRAM, "merged", VERSION].map(String::from).to_vec();
    let mut seen = HashSet::new();
    let once = parts.iter().filter(|part| seen.insert(*part));
    args.extend(once.flat_map(arguments));
    first.hooks.insert(0, Hook { args, ..pattern });
}

fn is_part(hook: &Hook, program: &str) -> bool {
    let name = hook.args.get(1).map(String::as_str).unwrap_or_default();
    hook.path == program && hook.hook_name == "createContainer" && PARTS.contains(&name)
}

/// Returns a merged hook's arguments: they keep their names; a hook without arguments becomes a flag.
fn arguments(hook: &Hook) -> Vec<String> {
    match hook.args.get(1..) {
        Some([name]) => vec![format!("--{name}")],
        Some([_, rest @ ..]) => rest.to_vec(),
        _ => Vec::new(),
    }
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
        merge(&mut all, PATH);
        let merged = "nvidia-cdi-hook merged --version=1 --link a::/b --host-driver-version=5 --folder /l --filter-driver-proc";
        assert_eq!(all[0].hooks, [hook(PATH, merged), foreign]);
        assert_eq!(all[1].hooks, [chmod]);
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let mut all = [edits(Vec::new())];
        merge(&mut all, "/x");
        assert!(all[0].hooks.is_empty());
        merge(&mut [], "/x");
    }
}
