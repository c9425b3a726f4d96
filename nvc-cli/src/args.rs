//! Declares the commands and options: the one table from which parsing, help, manual page and completions come.
//!
//! The order of options is upstream's, since getopt lists the candidates of an ambiguous abbreviation in that order.
//! Depends on clap alone, so that whatever generates documents can include it.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command, value_parser};

/// The program's name, where no other is known.
pub(crate) const PROGRAM: &str = "nvidia-container-cli";

/// Options that upstream 1.17.0 does not have: ours, and those of its later versions. Abbreviations mean its options
/// first, so that no command line that works there becomes ambiguous here; they are not counted where it counts words,
/// and `--usage` is its text.
pub(crate) const ADDITIONS: &[&str] = &["format", "dry-run", "no-cntlibs", "cuda-compat-mode"];

/// The commands.
pub(crate) const COMMANDS: [&str; 3] = ["info", "list", "configure"];

/// The whole program.
pub(crate) fn command() -> Command {
    automatic(Command::new(PROGRAM))
        .about("Makes NVIDIA GPUs and their driver usable inside a Linux container.")
        .args([
            value("debug", Some('d'), "FILE", "Append a debug log to FILE"),
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
            value(
                "user",
                Some('u'),
                "UID[:GID]",
                "Run the driver's library as this user; without a value as the caller \
                 [default: the overflow user]",
            )
            .num_args(0..=1)
            .require_equals(true),
            value(
                "root",
                Some('r'),
                "PATH",
                "Directory that holds the driver, e.g. /run/nvidia/driver [default: /]",
            ),
            value(
                "ldcache",
                Some('l'),
                "FILE",
                "The driver root's cache of shared libraries [default: /etc/ld.so.cache]",
            ),
            flag(
                "no-create-imex-channels",
                None,
                "With --load-kmods, create no IMEX channel nodes",
            ),
        ])
        .subcommands([info(), list(), configure()])
        .override_usage(format!("{PROGRAM} [OPTION...] COMMAND [ARG...]"))
        .subcommand_help_heading("Commands")
        .after_help(format!(
            "Options before the command are about the driver; each command has its own:\n  \
             {PROGRAM} configure --help\n\n\
             Example: what does this machine have?\n  \
             {PROGRAM} info\n\n\
             Example: the driver runs in a container of its own\n  \
             {PROGRAM} --root=/run/nvidia/driver list --libraries\n\n\
             Environment: PATH is searched for the driver's programs, CUDA_MPS_PIPE_DIRECTORY names the MPS pipe \
             directory, NVC_DEBUG_FILE means the same as --debug, NVC_DRIVER_TIMEOUT is how many seconds the driver \
             may take [default: 30], POSIXLY_CORRECT ends a command's options at its \
             first other argument.\n\n\
             Exit status: 0 if all went well, 1 if not; the reason is on standard error, and nothing that `configure' \
             began is left behind.\n\n\
             See also: nvidia-smi(1), nvidia-modprobe(1), nvidia-ctk, ld.so(8), ldconfig(8)"
        ))
}

fn info() -> Command {
    automatic(Command::new("info"))
        .about("Report the driver's version and the GPUs")
        .long_about(
            "Reports the driver's version and the GPUs, one block for each. MIG devices are shown with \
             --format=json only.",
        )
        .args([
            flag("csv", None, "Print comma-separated values"),
            format_option("Print text or JSON [default: text]"),
        ])
        .override_usage(format!("{PROGRAM} info [OPTION...]"))
        .after_help(format!(
            "Example: UUIDs of all GPUs\n  \
             {PROGRAM} info --format=json | jq -r '.devices[].uuid'"
        ))
}

fn list() -> Command {
    automatic(Command::new("list"))
        .about("List what a container needs of the driver")
        .long_about(
            "Lists what a container needs of the driver: device nodes, programs, libraries, sockets and firmware, \
             one path a line, as the driver root names them. Without options, everything.",
        )
        .args([
            list_value(
                "device",
                Some('d'),
                "ID",
                "List the nodes of these devices: indices, UUIDs, PCI addresses, GPU:MIG or all",
            ),
            flag("libraries", Some('l'), "List the driver's libraries"),
            flag("binaries", Some('b'), "List the driver's programs"),
            flag("ipcs", Some('i'), "List the driver's sockets"),
            flag("firmwares", Some('f'), "List the driver's firmware files"),
            flag("compat32", None, "With --libraries, list the 32-bit ones too"),
            list_value(
                "mig-config",
                None,
                "ID",
                "List what is needed to configure MIG on these devices; only `all'",
            ),
            list_value(
                "mig-monitor",
                None,
                "ID",
                "List what is needed to monitor MIG on these devices; only `all'",
            ),
            list_value(
                "imex-channel",
                None,
                "CHANNEL",
                "List the nodes of these IMEX channels",
            ),
            flag("no-persistenced", None, "Leave out nvidia-persistenced's socket"),
            flag(
                "no-fabricmanager",
                None,
                "Leave out nvidia-fabricmanager's socket",
            ),
            flag("no-gsp-firmware", None, "Leave out the GSP firmware"),
            // Upstream had it for a few releases and ignored it.
            flag("no-cntlibs", None, "Ignored, for compatibility").hide(true),
            format_option("Print text or JSON [default: text]"),
        ])
        .override_usage(format!("{PROGRAM} list [OPTION...]"))
        .after_help(format!(
            "Example: the nodes of the first GPU and of a MIG device\n  \
             {PROGRAM} list --device=0,1:0\n\n\
             Example: everything but devices, as JSON\n  \
             {PROGRAM} list -lbif --format=json"
        ))
}

fn configure() -> Command {
    automatic(Command::new("configure"))
        .about("Put the driver and chosen GPUs into a container")
        .long_about(
            "Puts the driver and chosen GPUs into a container that has been created but not yet started: ROOTFS is its \
             root directory as the caller sees it, PID a process in its mount namespace. What is put there depends on \
             the capabilities asked for (--compute and the like). If anything fails, all of it is taken back.\n\n\
             Without --pid, the caller's parent is taken to be in the container already.",
        )
        .args([
            value("pid", Some('p'), "PID", "A process in the container"),
            list_value(
                "device",
                Some('d'),
                "ID",
                "Devices to put in: indices, UUIDs, PCI addresses, GPU:MIG or all",
            ),
            list_value(
                "require",
                Some('r'),
                "EXPR",
                "Stop unless this holds, e.g. `cuda>=12.4 brand=tesla,driver>=535'; repeatable",
            ),
            value(
                "ldconfig",
                Some('l'),
                "PATH",
                "Program that updates the container's library cache; @PATH is the host's, PATH the \
                 container's, `builtin' none at all [default: the host's]",
            ),
            flag("compute", Some('c'), "Put in what CUDA and OpenCL need"),
            flag("utility", Some('u'), "Put in what monitoring needs, e.g. nvidia-smi"),
            flag("video", Some('v'), "Put in the video codecs"),
            flag("graphics", Some('g'), "Put in what OpenGL and Vulkan need"),
            flag("display", Some('D'), "Put in what X11 displays need"),
            flag("ngx", Some('n'), "Put in NGX (DLSS and the like)"),
            flag("compat32", None, "Put in 32-bit libraries too"),
            list_value(
                "mig-config",
                None,
                "ID",
                "Let the container configure MIG on these devices; only `all'",
            ),
            list_value(
                "mig-monitor",
                None,
                "ID",
                "Let the container monitor MIG on these devices; only `all'",
            ),
            flag("no-cgroups", None, "Leave the container's device cgroup alone"),
            flag("no-devbind", None, "Put in no device nodes"),
            flag("no-persistenced", None, "Leave out nvidia-persistenced's socket"),
            flag(
                "no-fabricmanager",
                None,
                "Leave out nvidia-fabricmanager's socket",
            ),
            flag("no-gsp-firmware", None, "Leave out the GSP firmware"),
            list_value(
                "imex-channel",
                None,
                "CHANNEL",
                "IMEX channels to put in",
            ),
            flag(
                "no-cntlibs",
                None,
                "Same as --cuda-compat-mode=disabled, and wins over it",
            ),
            value(
                "cuda-compat-mode",
                None,
                "MODE",
                "How the image's CUDA compatibility libraries are used: mount, ldconfig or \
                 disabled [default: mount]",
            ),
            flag("dry-run", None, "Print what would be done, and do nothing"),
            format_option("With --dry-run, print text or JSON [default: text]"),
            Arg::new("rootfs")
                .value_name("ROOTFS")
                .value_parser(any_bytes())
                .required(true)
                .help("The container's root directory"),
        ])
        .override_usage(format!("{PROGRAM} configure [OPTION...] ROOTFS"))
        .after_help(format!(
            "Example: CUDA on all GPUs, from a container engine's prestart hook\n  \
             {PROGRAM} --load-kmods configure --ldconfig=@/sbin/ldconfig --device=all \\\n      \
             --compute --utility --require='cuda>=12.4' --pid=\"$PID\" \"$ROOTFS\"\n\n\
             Example: what would that do?\n  \
             {PROGRAM} configure --dry-run --device=0 --compute --pid=\"$PID\" \"$ROOTFS\""
        ))
}

/// What every command of upstream's has without asking; getopt acts on them before clap sees anything.
fn automatic(command: Command) -> Command {
    command
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .args_override_self(true)
        .max_term_width(100)
        .args([
            flag("help", Some('?'), "Print this help").display_order(999),
            flag("usage", None, "Print the options in short").display_order(999),
            flag(
                "version",
                Some('V'),
                "Print the versions of program and library",
            )
            .display_order(999),
        ])
}

fn flag(long: &'static str, short: Option<char>, help: &'static str) -> Arg {
    option(long, short, help).action(ArgAction::SetTrue)
}

/// An option whose last value counts.
fn value(long: &'static str, short: Option<char>, name: &'static str, help: &'static str) -> Arg {
    option(long, short, help)
        .value_name(name)
        .value_parser(any_bytes())
        .action(ArgAction::Set)
}

/// An option all of whose values count.
fn list_value(
    long: &'static str,
    short: Option<char>,
    name: &'static str,
    help: &'static str,
) -> Arg {
    value(long, short, name, help).action(ArgAction::Append)
}

fn format_option(help: &'static str) -> Arg {
    value("format", None, "FORMAT", help)
}

fn option(long: &'static str, short: Option<char>, help: &'static str) -> Arg {
    Arg::new(long).long(long).short(short).help(help)
}

/// Paths need not be UTF-8.
fn any_bytes() -> ValueParser {
    value_parser!(OsString)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn commands_exist() {
        let command = command();
        let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!(names, COMMANDS);
    }

    #[test]
    fn additions_exist() {
        let command = command();
        for name in ADDITIONS {
            let known = command
                .get_subcommands()
                .flat_map(Command::get_arguments)
                .any(|arg| arg.get_long() == Some(name));
            assert!(known, "{name}");
        }
    }
}
