//! Lists the hooks with their options; each hook has its own file.

mod apply;
mod chmod;
mod cuda_compat;
mod discover;
mod driver;
mod library_path;
mod sockets;
mod symlinks;

use libnvc::plan::Intent;
use libnvc::{Error, ErrorKind, Result};
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
#[rustfmt::skip]
const FOLDERS: &[Opt] = &[
    text("ldconfig-path", "FILE", "The host's ldconfig; by default none runs if that is safe"),
    list("folder", "DIR", "A directory with libraries"),
];

#[rustfmt::skip]
const HOOKS: &[Hook] = &[
    hook(hook_names::CREATE_SYMLINKS, Some(symlinks::intents), "Make symbolic links in the container", &[
        list("link", "TARGET::LINK", "Make LINK, which leads to TARGET"),
    ]),
    hook(hook_names::ENABLE_CUDA_COMPAT, Some(cuda_compat::intents),
        "Let the loader find the image's CUDA compatibility libraries, if they are newer than the driver", &[
        text("host-driver-version", "VERSION", "Version of the host's driver"),
        text("host-cuda-version", "VERSION", "Newest CUDA version of the host's driver"),
        text("cuda-compat-container-root", "DIR", "The image's directory of the libraries"),
    ]),
    hook(hook_names::DISABLE_NODE_MODIFICATION, Some(driver::params),
        "Tell programs in the container not to create device nodes", &[]),
    hook(hook_names::FILTER_DRIVER_PROC, Some(driver::devices),
        "Hide other GPUs in the container's /proc/driver/nvidia", &[]),
    hook(hook_names::UPDATE_PROFILE, Some(driver::profile), "Let EGL see the container's GPUs only", &[]),
    hook(hook_names::CHMOD, Some(chmod::intents), "Change permissions in the container", &[
        text("mode", "OCTAL", "The permissions"),
        list("path", "PATH", "File or directory to change"),
    ]),
    hook(hook_names::UPDATE_LDCACHE, Some(library_path::intents),
        "Let the loader find the libraries of some directories", FOLDERS).using_volumes(),
    hook(hook_names::CREATE_SONAME_SYMLINKS, Some(library_path::intents),
        "Make the links by which the loader finds the libraries of some directories", FOLDERS).using_volumes(),
    hook(hook_names::MOUNT_SOCKETS, Some(sockets::intents),
        "Mount the sockets of the driver's daemons that exist", sockets::OPTIONS),
    hook(hook_names::APPLY, Some(apply::intents), "Apply a plan: files, links and the loader's search path", apply::OPTIONS)
        .using_volumes(),
    hook(hook_names::APPLY_MEMORY_LIMITS, None,
        "Fail if the container asks for limits of GPU memory, which are not supported yet", &[
        text("driver-root", "DIR", "Root of the driver"),
        list("gpu-id", "UUID", "A GPU of the container"),
    ]),
    hook("noop", None, "Do nothing", &[]),
];

const fn hook(
    name: &'static str,
    intents: Option<Intents>,
    about: &'static str,
    options: &'static [Opt],
) -> Hook {
    Hook {
        name,
        about,
        options,
        uses_volumes: false,
        intents,
    }
}

/// Returns the driver root in the arguments.
fn driver_root(given: &Given) -> &str {
    let root = given.text("driver-root").filter(|path| !path.is_empty());
    root.unwrap_or("/")
}

/// Returns the hook of a name.
pub(crate) fn find(name: &str) -> Option<&'static Hook> {
    HOOKS.iter().find(|hook| hook.name == name)
}

/// Returns an error for a hook that only specifications of older versions name: without it a container has no driver.
pub(crate) fn outdated(name: &str) -> Option<Error> {
    (name == "merged").then(|| {
        let text = "the CDI specification was written by an older version of nvidia-ctk";
        let error = Error::new(ErrorKind::InvalidArgument, text);
        error.hint("write it again: nvidia-ctk cdi generate, or start nvidia-cdi-refresh.service")
    })
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
    const fn using_volumes(self) -> Self {
        let uses_volumes = true;
        Self {
            uses_volumes,
            ..self
        }
    }

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
