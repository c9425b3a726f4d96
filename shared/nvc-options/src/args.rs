//! Declares the commands and options in one table, the source of parsing, help, manual page and completions.
//!
//! The order of options is upstream's, because getopt lists the candidates of an ambiguous abbreviation in that order.
//! The table is a constant, which costs nothing at start; [`help`](crate::help) renders it.

/// The program's name, if none is known from the command line.
pub const PROGRAM: &str = "nvidia-container-cli";

/// The program, or one of its commands.
#[derive(Debug)]
pub struct Command {
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Full description, if it is longer.
    pub long_about: Option<&'static str>,
    pub options: &'static [Opt],
    pub operand: Option<Operand>,
    pub commands: &'static [Command],
    /// Text below the options, such as examples.
    pub after: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub struct Opt {
    pub long: &'static str,
    pub short: Option<char>,
    pub takes: Takes,
    pub help: &'static str,
    /// An option that upstream 1.17.0 lacks: ours, and those of its later versions. Abbreviations match upstream's
    /// options first, so that no command line that works there becomes ambiguous here. Additions are not counted where
    /// upstream counts arguments, and `--usage` is upstream's text.
    pub addition: bool,
    /// Accepted only for compatibility.
    pub hidden: bool,
}

/// The argument of an option; values have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    /// A value; the last one counts.
    Value(&'static str),
    /// An optional value, which must be attached.
    PerhapsValue(&'static str),
    /// A value; all of them count.
    Values(&'static str),
}

impl Takes {
    /// Returns the name of the value, if the option can have one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Value(name) | Self::PerhapsValue(name) | Self::Values(name) => Some(name),
        }
    }
}

/// The positional argument of a command.
#[derive(Debug)]
pub struct Operand {
    pub name: &'static str,
    pub help: &'static str,
}

/// Options that argp adds to every command.
pub const HELP: Opt = flag("help", Some('?'), "Print this help");
pub const USAGE: Opt = flag("usage", None, "Print the options in short");
pub const VERSION: Opt = flag(
    "version",
    Some('V'),
    "Print the versions of program and library",
);

/// The program and its commands.
pub static TABLE: Command = Command {
    name: PROGRAM,
    about: "Makes NVIDIA GPUs and their driver usable inside a Linux container.",
    long_about: None,
    options: &[
        option(
            "debug",
            Some('d'),
            Takes::Value("FILE"),
            "Append a debug log to FILE",
        ),
        flag(
            "load-kmods",
            Some('k'),
            "Load the kernel modules and create the device nodes first",
        ),
        flag(
            "no-pivot",
            Some('n'),
            "Confine ldconfig by moving a mount and chroot, for a root on initramfs",
        ),
        option(
            "user",
            Some('u'),
            Takes::PerhapsValue("UID[:GID]"),
            "Run the driver's library as this user; without a value as the caller \
         [default: the overflow user]",
        ),
        option(
            "root",
            Some('r'),
            Takes::Value("PATH"),
            "Directory that holds the driver, e.g. /run/nvidia/driver [default: /]",
        ),
        option(
            "ldcache",
            Some('l'),
            Takes::Value("FILE"),
            "The driver root's cache of shared libraries [default: /etc/ld.so.cache]",
        ),
        flag(
            "no-create-imex-channels",
            None,
            "With --load-kmods, create no IMEX channel nodes",
        ),
    ],
    operand: None,
    commands: &[INFO, LIST, CONFIGURE],
    after: "Options before the command are about the driver; each command has its own:\n  \
         nvidia-container-cli configure --help\n\n\
         Example: what does this machine have?\n  \
         nvidia-container-cli info\n\n\
         Example: the driver runs in a container of its own\n  \
         nvidia-container-cli --root=/run/nvidia/driver list --libraries\n\n\
         Environment: PATH is searched for the driver's programs, CUDA_MPS_PIPE_DIRECTORY names the MPS pipe \
         directory, NVC_DEBUG_FILE means the same as --debug, NVC_DRIVER_TIMEOUT is how many seconds the driver \
         may take [default: 30], POSIXLY_CORRECT ends a command's options at its \
         first other argument.\n\n\
         Exit status: 0 if all went well, 1 if not; the reason is on standard error, and nothing that `configure' \
         began is left behind.\n\n\
         See also: nvidia-smi(1), nvidia-modprobe(1), nvidia-ctk, ld.so(8), ldconfig(8)",
};

const INFO: Command = Command {
    name: "info",
    about: "Report the driver's version and the GPUs",
    long_about: Some(
        "Reports the driver's version and the GPUs, one block for each. MIG devices are shown with \
         --format=json only.",
    ),
    options: &[
        flag("csv", None, "Print comma-separated values"),
        format_option("Print text or JSON [default: text]"),
    ],
    operand: None,
    commands: &[],
    after: "Example: UUIDs of all GPUs\n  \
         nvidia-container-cli info --format=json | jq -r '.devices[].uuid'",
};

const LIST: Command = Command {
    name: "list",
    about: "List what a container needs of the driver",
    long_about: Some(
        "Lists what a container needs of the driver: device nodes, programs, libraries, sockets and firmware, \
         one path a line, as the driver root names them. Without options, everything.",
    ),
    options: &[
        option(
            "device",
            Some('d'),
            Takes::Values("ID"),
            "List the nodes of these devices: indices, UUIDs or their starts, PCI addresses, GPU:MIG or all",
        ),
        flag("libraries", Some('l'), "List the driver's libraries"),
        flag("binaries", Some('b'), "List the driver's programs"),
        flag("ipcs", Some('i'), "List the driver's sockets"),
        flag("firmwares", Some('f'), "List the driver's firmware files"),
        flag(
            "compat32",
            None,
            "With --libraries, list the 32-bit ones too",
        ),
        mig_config("List what is needed to configure MIG on these devices; only `all'"),
        mig_monitor("List what is needed to monitor MIG on these devices; only `all'"),
        imex_channel("List the nodes of these IMEX channels"),
        NO_PERSISTENCED,
        NO_FABRICMANAGER,
        NO_GSP_FIRMWARE,
        // Upstream accepted and ignored it for a few releases.
        hidden(flag("no-cntlibs", None, "Ignored, for compatibility")),
        format_option("Print text or JSON [default: text]"),
    ],
    operand: None,
    commands: &[],
    after: "Example: the nodes of the first GPU and of a MIG device\n  \
         nvidia-container-cli list --device=0,1:0\n\n\
         Example: everything but devices, as JSON\n  \
         nvidia-container-cli list -lbif --format=json",
};

const CONFIGURE: Command = Command {
    name: "configure",
    about: "Put the driver and chosen GPUs into a container",
    long_about: Some(
        "Puts the driver and chosen GPUs into a container that has been created but not yet started: ROOTFS is its \
         root directory as the caller sees it, PID a process in its mount namespace. What is put there depends on \
         the capabilities asked for (--compute and the like). If anything fails, all of it is taken back.\n\n\
         Without --pid, the caller's parent is taken to be in the container already.",
    ),
    options: &[
        option(
            "pid",
            Some('p'),
            Takes::Value("PID"),
            "A process in the container",
        ),
        option(
            "device",
            Some('d'),
            Takes::Values("ID"),
            "Devices to put in: indices, UUIDs or their starts, PCI addresses, GPU:MIG or all",
        ),
        option(
            "require",
            Some('r'),
            Takes::Values("EXPR"),
            "Stop unless this holds, e.g. `cuda>=12.4 brand=tesla,driver>=535'; repeatable",
        ),
        option(
            "ldconfig",
            Some('l'),
            Takes::Value("PATH"),
            "Program that updates the container's library cache: @PATH is the host's, PATH the \
         container's; `auto' is none if the image's cache is sound, else the host's [default: auto]",
        ),
        flag("compute", Some('c'), "Put in what CUDA and OpenCL need"),
        flag(
            "utility",
            Some('u'),
            "Put in what monitoring needs, e.g. nvidia-smi",
        ),
        flag("video", Some('v'), "Put in the video codecs"),
        flag("graphics", Some('g'), "Put in what OpenGL and Vulkan need"),
        flag("display", Some('D'), "Put in what X11 displays need"),
        flag("ngx", Some('n'), "Put in NGX (DLSS and the like)"),
        flag("compat32", None, "Put in 32-bit libraries too"),
        mig_config("Let the container configure MIG on these devices; only `all'"),
        mig_monitor("Let the container monitor MIG on these devices; only `all'"),
        flag(
            "no-cgroups",
            None,
            "Leave the container's device cgroup alone",
        ),
        flag("no-devbind", None, "Put in no device nodes"),
        NO_PERSISTENCED,
        NO_FABRICMANAGER,
        NO_GSP_FIRMWARE,
        imex_channel("IMEX channels to put in"),
        addition(flag(
            "no-cntlibs",
            None,
            "Same as --cuda-compat-mode=disabled, and wins over it",
        )),
        addition(option(
            "cuda-compat-mode",
            None,
            Takes::Value("MODE"),
            "How the image's CUDA compatibility libraries are used: mount, ldconfig or \
         disabled [default: mount]",
        )),
        addition(flag(
            "dry-run",
            None,
            "Print what would be done, and do nothing",
        )),
        format_option("With --dry-run, print text or JSON [default: text]"),
    ],
    operand: Some(Operand {
        name: "ROOTFS",
        help: "The container's root directory",
    }),
    commands: &[],
    after: "Example: CUDA on all GPUs, from a container engine's prestart hook\n  \
         nvidia-container-cli --load-kmods configure --ldconfig=@/sbin/ldconfig --device=all \\\n      \
         --compute --utility --require='cuda>=12.4' --pid=\"$PID\" \"$ROOTFS\"\n\n\
         Example: what would that do?\n  \
         nvidia-container-cli configure --dry-run --device=0 --compute --pid=\"$PID\" \"$ROOTFS\"",
};

const fn flag(long: &'static str, short: Option<char>, help: &'static str) -> Opt {
    option(long, short, Takes::Nothing, help)
}

/// Options of `list` and `configure`: the files that either leaves out, and the devices, whose help names the action.
const NO_PERSISTENCED: Opt = flag(
    "no-persistenced",
    None,
    "Leave out nvidia-persistenced's socket",
);
const NO_FABRICMANAGER: Opt = flag(
    "no-fabricmanager",
    None,
    "Leave out nvidia-fabricmanager's socket",
);
const NO_GSP_FIRMWARE: Opt = flag("no-gsp-firmware", None, "Leave out the GSP firmware");

const fn mig_config(help: &'static str) -> Opt {
    option("mig-config", None, Takes::Values("ID"), help)
}

const fn mig_monitor(help: &'static str) -> Opt {
    option("mig-monitor", None, Takes::Values("ID"), help)
}

const fn imex_channel(help: &'static str) -> Opt {
    option("imex-channel", None, Takes::Values("CHANNEL"), help)
}

const fn format_option(help: &'static str) -> Opt {
    addition(option("format", None, Takes::Value("FORMAT"), help))
}

const fn option(long: &'static str, short: Option<char>, takes: Takes, help: &'static str) -> Opt {
    Opt {
        long,
        short,
        takes,
        help,
        addition: false,
        hidden: false,
    }
}

const fn addition(option: Opt) -> Opt {
    Opt {
        addition: true,
        ..option
    }
}

const fn hidden(option: Opt) -> Opt {
    Opt {
        addition: true,
        hidden: true,
        ..option
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_are_given_once() {
        for command in [&TABLE].into_iter().chain(TABLE.commands) {
            let options = || command.options.iter().chain([&HELP, &USAGE, &VERSION]);
            for option in options() {
                let alike = |other: &&Opt| {
                    other.long == option.long
                        || other.short.is_some() && other.short == option.short
                };
                assert_eq!(
                    options().filter(alike).count(),
                    1,
                    "{} {}",
                    command.name,
                    option.long
                );
            }
        }
    }
}
