//! Lists the commands and options of nvidia-container-cli.
//!
//! The order of options is upstream's, because getopt lists the candidates of an ambiguous abbreviation in that order.

use crate::table::{Command, Operand, Opt, Takes, command, flag, opt, value, values};

/// The program's name, if none is known from the command line.
pub const PROGRAM: &str = "nvidia-container-cli";

/// Options that argp adds to every command, in its order, which is that of getopt's candidates. Those without a help
/// text are for debugging: --program-name changes the name in later messages of argp, --HANG is ignored.
#[rustfmt::skip]
pub(crate) static AUTOMATIC: [Opt; 5] = [
    flag("help", "Print this help").short('?'),
    flag("usage", "Print the options in short"),
    value("program-name", "NAME", "").hidden(),
    opt("HANG", Takes::PerhapsValue("SECS"), "").hidden(),
    flag("version", "Print the versions of program and library").short('V'),
];

/// The program and its commands.
#[rustfmt::skip]
pub static TABLE: Command = Command {
    options: &[
        value("debug", "FILE", "Append a debug log to FILE").short('d'),
        flag("load-kmods", "Load the kernel modules and create the device nodes first").short('k'),
        flag("no-pivot", "Confine ldconfig by moving a mount and chroot, for a root on initramfs").short('n'),
        opt("user", Takes::PerhapsValue("UID[:GID]"),
            "Run the driver's library as this user; without a value as the caller [default: the overflow user]")
            .short('u'),
        value("root", "PATH", "Directory that holds the driver, e.g. /run/nvidia/driver [default: /]").short('r'),
        value("ldcache", "FILE", "The driver root's cache of shared libraries [default: /etc/ld.so.cache]").short('l'),
        flag("no-create-imex-channels", "With --load-kmods, create no IMEX channel nodes"),
    ],
    every: &AUTOMATIC,
    commands: &[INFO, LIST, CONFIGURE],
    after: "Options before the command are about the driver; each command has its own:\n  \
         nvidia-container-cli configure --help\n\n\
         Example: what does this machine have?\n  \
         nvidia-container-cli info\n\n\
         Example: the driver runs in a container of its own\n  \
         nvidia-container-cli --root=/run/nvidia/driver list --libraries\n\n\
         Environment: PATH is searched for the driver's programs, CUDA_MPS_PIPE_DIRECTORY names the MPS pipe \
         directory, NVC_DEBUG_FILE means the same as --debug, NVC_DRIVER_TIMEOUT is how many seconds the driver \
         may take [default: 30], and again for each further GPU, POSIXLY_CORRECT ends a command's options at its \
         first other argument.\n\n\
         Exit status: 0 if all went well, 1 if not; the reason is on standard error, and nothing that `configure' \
         began is left behind.\n\n\
         See also: nvidia-smi(1), nvidia-modprobe(1), nvidia-ctk, ld.so(8), ldconfig(8)",
    ..command(PROGRAM, "Make NVIDIA GPUs and their driver usable inside a Linux container.", &[], "")
};

const INFO: Command = Command {
    long_about: Some(
        "Report the driver's version and the GPUs, one block for each. MIG devices are shown with \
         --format=json only.",
    ),
    options: &[
        flag("csv", "Print comma-separated values"),
        format_option("Print text or JSON [default: text]"),
    ],
    after: "Example: UUIDs of all GPUs\n  \
         nvidia-container-cli info --format=json | jq -r '.devices[].uuid'",
    ..command("info", "Report the driver's version and the GPUs", &[], "")
};

#[rustfmt::skip]
const LIST: Command = Command {
    long_about: Some(
        "List what a container needs of the driver: device nodes, programs, libraries, sockets and firmware, \
         one path a line, as the driver root names them. Without options, everything.",
    ),
    options: &[
        values("device", "ID",
            "List the nodes of these devices: indices, UUIDs or their starts, PCI addresses, GPU:MIG or all")
            .short('d'),
        flag("libraries", "List the driver's libraries").short('l'),
        flag("binaries", "List the driver's programs").short('b'),
        flag("ipcs", "List the driver's sockets").short('i'),
        flag("firmwares", "List the driver's firmware files").short('f'),
        flag("compat32", "With --libraries, list the 32-bit ones too"),
        values("mig-config", "ID", "List what is needed to configure MIG on these devices; only `all'"),
        values("mig-monitor", "ID", "List what is needed to monitor MIG on these devices; only `all'"),
        values("imex-channel", "CHANNEL", "List the nodes of these IMEX channels"),
        NO_PERSISTENCED,
        NO_FABRICMANAGER,
        NO_GSP_FIRMWARE,
        // Upstream accepted and ignored it for a few releases.
        flag("no-cntlibs", "Ignored, for compatibility").addition().hidden(),
        format_option("Print text or JSON [default: text]"),
    ],
    after: "Example: the nodes of the first GPU and of a MIG device\n  \
         nvidia-container-cli list --device=0,1:0\n\n\
         Example: everything but devices, as JSON\n  \
         nvidia-container-cli list -lbif --format=json",
    ..command("list", "List what a container needs of the driver", &[], "")
};

#[rustfmt::skip]
const CONFIGURE: Command = Command {
    long_about: Some(
        "Put the driver and chosen GPUs into a container that has been created but not yet started: ROOTFS is its \
         root directory as the caller sees it, PID a process in its mount namespace. What is put there depends on \
         the capabilities asked for (--compute and the like). If anything fails, all of it is taken back.\n\n\
         Without --pid, the caller's parent is taken to be in the container already.",
    ),
    options: &[
        value("pid", "PID", "A process in the container").short('p'),
        values("device", "ID", "Devices to put in: indices, UUIDs or their starts, PCI addresses, GPU:MIG or all")
            .short('d'),
        values("require", "EXPR", "Stop unless this holds, e.g. `cuda>=12.4 brand=tesla,driver>=535'; repeatable")
            .short('r'),
        value("ldconfig", "PATH",
            "Program that updates the container's library cache: @PATH is the host's, PATH the container's; `auto' is \
             none if the image's cache is sound, else the host's [default: auto]").short('l'),
        flag("compute", "Put in what CUDA and OpenCL need").short('c'),
        flag("utility", "Put in what monitoring needs, e.g. nvidia-smi").short('u'),
        flag("video", "Put in the video codecs").short('v'),
        flag("graphics", "Put in what OpenGL and Vulkan need").short('g'),
        flag("display", "Put in what X11 displays need").short('D'),
        flag("ngx", "Put in NGX (DLSS and the like)").short('n'),
        flag("compat32", "Put in 32-bit libraries too"),
        values("mig-config", "ID", "Let the container configure MIG on these devices; only `all'"),
        values("mig-monitor", "ID", "Let the container monitor MIG on these devices; only `all'"),
        flag("no-cgroups", "Leave the container's device cgroup alone"),
        flag("no-devbind", "Put in no device nodes"),
        NO_PERSISTENCED,
        NO_FABRICMANAGER,
        NO_GSP_FIRMWARE,
        values("imex-channel", "CHANNEL", "IMEX channels to put in"),
        flag("no-cntlibs", "Same as --cuda-compat-mode=disabled, and wins over it").addition(),
        value("cuda-compat-mode", "MODE",
            "How the image's CUDA compatibility libraries are used: mount, ldconfig or disabled [default: mount]")
            .addition(),
        value("process-user", "UID:GID[,GID...]",
            "User and groups of the container's process, for warnings of nodes that it may not open [default: those \
             that it has now]").addition(),
        flag("dry-run", "Print what would be done, and do nothing").addition(),
        format_option("With --dry-run, print text or JSON [default: text]"),
    ],
    operand: Some(Operand { name: "ROOTFS", help: "The container's root directory" }),
    after: "Example: CUDA on all GPUs, from a container engine's prestart hook\n  \
         nvidia-container-cli --load-kmods configure --ldconfig=@/sbin/ldconfig --device=all \\\n      \
         --compute --utility --require='cuda>=12.4' --pid=\"$PID\" \"$ROOTFS\"\n\n\
         Example: what would that do?\n  \
         nvidia-container-cli configure --dry-run --device=0 --compute --pid=\"$PID\" \"$ROOTFS\"",
    ..command("configure", "Put the driver and chosen GPUs into a container", &[], "")
};

// Options of `list` and `configure`: the files that either leaves out.
const NO_PERSISTENCED: Opt = flag("no-persistenced", "Leave out nvidia-persistenced's socket");
const NO_FABRICMANAGER: Opt = flag(
    "no-fabricmanager",
    "Leave out nvidia-fabricmanager's socket",
);
const NO_GSP_FIRMWARE: Opt = flag("no-gsp-firmware", "Leave out the GSP firmware");

const fn format_option(help: &'static str) -> Opt {
    value("format", "FORMAT", help).addition()
}
