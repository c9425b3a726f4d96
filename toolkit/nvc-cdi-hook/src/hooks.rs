//! Lists the hooks with their options; each hook has its own file.

mod chmod;
mod cuda_compat;
mod discover;
mod driver;
mod library_path;
mod merged;
mod mounts;
mod sockets;
mod symlinks;

use libnvc::Result;
use libnvc::plan::Intent;
use nvc_options::table::{value as text, values as list};
use nvc_options::{Given, Opt};
use nvc_program::{hints, hook_names};

use crate::PROGRAM;
use crate::arguments::EVERY;

/// Converts a hook's arguments to intents.
pub(crate) type Intents = fn(&Given) -> Result<Vec<Intent>>;

#[derive(Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static str,
    about: &'static str,
    pub(crate) options: &'static [Opt],
    /// It may change on volumes what the container's owner may change there.
    pub(crate) uses_volumes: bool,
    /// None for hooks that change nothing.
    pub(crate) intents: Option<Intents>,
}

/// Options of the hooks for the loader.
const FOLDERS: [Opt; 2] = [
    text(
        "ldconfig-path",
        "FILE",
        "The host's ldconfig; by default none runs if that is safe",
    ),
    list("folder", "DIR", "A directory with libraries"),
];

const HOOKS: &[Hook] = &[
    Hook {
        name: hook_names::CREATE_SYMLINKS,
        about: "Make symbolic links in the container",
        options: &[list(
            "link",
            "TARGET::LINK",
            "Make LINK, which leads to TARGET",
        )],
        uses_volumes: false,
        intents: Some(symlinks::intents),
    },
    Hook {
        name: hook_names::ENABLE_CUDA_COMPAT,
        about: "Let the loader find the image's CUDA compatibility libraries, if they are newer than the driver",
        options: &[
            text(
                "host-driver-version",
                "VERSION",
                "Version of the host's driver",
            ),
            text(
                "host-cuda-version",
                "VERSION",
                "Newest CUDA version of the host's driver",
            ),
            text(
                "cuda-compat-container-root",
                "DIR",
                "The image's directory of the libraries",
            ),
        ],
        uses_volumes: false,
        intents: Some(cuda_compat::intents),
    },
    Hook {
        name: hook_names::DISABLE_NODE_MODIFICATION,
        about: "Tell programs in the container not to create device nodes",
        options: &[],
        uses_volumes: false,
        intents: Some(driver::params),
    },
    Hook {
        name: hook_names::FILTER_DRIVER_PROC,
        about: "Hide other GPUs in the container's /proc/driver/nvidia",
        options: &[],
        uses_volumes: false,
        intents: Some(driver::devices),
    },
    Hook {
        name: hook_names::UPDATE_PROFILE,
        about: "Let EGL see the container's GPUs only",
        options: &[],
        uses_volumes: false,
        intents: Some(driver::profile),
    },
    Hook {
        name: hook_names::CHMOD,
        about: "Change permissions in the container",
        options: &[
            text("mode", "OCTAL", "The permissions"),
            list("path", "PATH", "File or directory to change"),
        ],
        uses_volumes: false,
        intents: Some(chmod::intents),
    },
    Hook {
        name: hook_names::UPDATE_LDCACHE,
        about: "Let the loader find the libraries of some directories",
        options: &FOLDERS,
        uses_volumes: true,
        intents: Some(library_path::intents),
    },
    Hook {
        name: hook_names::CREATE_SONAME_SYMLINKS,
        about: "Make the links by which the loader finds the libraries of some directories",
        options: &FOLDERS,
        uses_volumes: true,
        intents: Some(library_path::intents),
    },
    Hook {
        name: hook_names::MOUNT_SOCKETS,
        about: "Mount the sockets of the driver's daemons that exist",
        options: sockets::OPTIONS,
        uses_volumes: false,
        intents: Some(sockets::intents),
    },
    Hook {
        name: hook_names::MERGED,
        about: "Do the work of several hooks in one process",
        options: merged::OPTIONS,
        uses_volumes: true,
        intents: Some(merged::intents),
    },
    Hook {
        name: hook_names::APPLY_MEMORY_LIMITS,
        about: "Fail if the container asks for limits of GPU memory, which are not supported yet",
        options: &[
            text("driver-root", "DIR", "Root of the driver"),
            list("gpu-id", "UUID", "A GPU of the container"),
        ],
        uses_volumes: false,
        intents: None,
    },
    Hook {
        name: "noop",
        about: "Do nothing",
        options: &[],
        uses_volumes: false,
        intents: None,
    },
];

/// Returns the driver root in the arguments.
fn driver_root(given: &Given) -> &str {
    let root = given.text("driver-root").filter(|path| !path.is_empty());
    root.unwrap_or("/")
}

/// Returns the hook of a name.
pub(crate) fn find(name: &str) -> Option<&'static Hook> {
    HOOKS.iter().find(|hook| hook.name == name)
}

/// Returns the name of the hook that a misspelt one probably means.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let known: Vec<_> = HOOKS.iter().map(|hook| hook.name).collect();
    hints::nearest(name, &known)
}

/// Returns the program's help.
pub(crate) fn help() -> String {
    let mut text =
        format!("Usage: {PROGRAM} [--debug] [--quiet] HOOK [OPTION...] < STATE\n\nHooks:\n");
    for hook in HOOKS {
        text += &format!("  {:<34} {}\n", hook.name, hook.about);
    }
    text
}

impl Hook {
    /// Returns the hook's help.
    pub(crate) fn help(&self) -> String {
        let mut text = format!(
            "{}\n\nUsage: {PROGRAM} {} [OPTION...] < STATE\n\nOptions:\n",
            self.about, self.name
        );
        let shown = self.options.iter().chain(&EVERY);
        for opt in shown.filter(|opt| !opt.hidden) {
            let value = opt.takes.name().map(|value| format!(" {value}"));
            let named = format!("{}{}", opt.long, value.unwrap_or_default());
            text += &format!("  --{named:<36} {}\n", opt.help);
        }
        text
    }
}
