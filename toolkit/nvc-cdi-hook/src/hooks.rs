//! Lists the hooks with their options; each hook has its own file.

mod application_profile;
mod chmod;
mod cuda_compat;
mod device_node_modification;
mod discover;
mod driver_proc;
mod library_path;
mod merged;
mod symlinks;
mod tmpfs;

use crate::arguments::{EVERY, Given, Opt};
use crate::report::Report;
use crate::root::Root;
use crate::{PROGRAM, Result};

/// Runs a hook in a container's root.
pub(crate) type Run = fn(&Given, &Root, &mut Report) -> Result<()>;

/// A hook.
#[derive(Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static str,
    about: &'static str,
    pub(crate) options: &'static [Opt],
    /// None for the hook that does nothing.
    pub(crate) run: Option<Run>,
}

const fn text(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt {
        name,
        value: Some(value),
        is_list: false,
        help,
    }
}

const fn list(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt {
        name,
        value: Some(value),
        is_list: true,
        help,
    }
}

const HOOKS: &[Hook] = &[
    Hook {
        name: "create-symlinks",
        about: "Make symbolic links in the container",
        options: &[list(
            "link",
            "TARGET::LINK",
            "Make LINK, which leads to TARGET",
        )],
        run: Some(symlinks::run),
    },
    Hook {
        name: "enable-cuda-compat",
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
        run: Some(cuda_compat::run),
    },
    Hook {
        name: "disable-device-node-modification",
        about: "Tell programs in the container not to create device nodes",
        options: &[],
        run: Some(device_node_modification::run),
    },
    Hook {
        name: "filter-driver-proc",
        about: "Hide other GPUs in the container's /proc/driver/nvidia",
        options: &[],
        run: Some(driver_proc::run),
    },
    Hook {
        name: "update-application-profile",
        about: "Let EGL see the container's GPUs only",
        options: &[],
        run: Some(application_profile::run),
    },
    Hook {
        name: "chmod",
        about: "Change permissions in the container",
        options: &[
            text("mode", "OCTAL", "The permissions"),
            list("path", "PATH", "What gets them"),
        ],
        run: Some(chmod::run),
    },
    Hook {
        name: "update-ldcache",
        about: "Let the loader find the libraries of some directories",
        options: &[
            text(
                "ldconfig-path",
                "FILE",
                "The host's ldconfig; by default none runs if that is safe",
            ),
            list("folder", "DIR", "A directory with libraries"),
        ],
        run: Some(library_path::run),
    },
    Hook {
        name: "create-soname-symlinks",
        about: "Make the links by which the loader finds the libraries of some directories",
        options: &[
            text(
                "ldconfig-path",
                "FILE",
                "The host's ldconfig; by default none runs if that is safe",
            ),
            list("folder", "DIR", "A directory with libraries"),
        ],
        run: Some(library_path::run),
    },
    Hook {
        name: "merged",
        about: "Do the work of several hooks in one process",
        options: merged::OPTIONS,
        run: Some(merged::run),
    },
    Hook {
        name: "noop",
        about: "Do nothing",
        options: &[],
        run: None,
    },
];

/// Returns the hook of a name.
pub(crate) fn find(name: &str) -> Option<&'static Hook> {
    HOOKS.iter().find(|hook| hook.name == name)
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
        // --container-spec is for tests, and upstream's help does not name it either.
        let shown = self.options.iter().chain(&EVERY);
        for opt in shown.filter(|opt| opt.name != "container-spec") {
            let value = opt
                .value
                .map(|value| format!(" {value}"))
                .unwrap_or_default();
            text += &format!("  --{:<36} {}\n", format!("{}{value}", opt.name), opt.help);
        }
        text += &format!("  --{:<36} Print help\n", "help");
        text
    }
}
