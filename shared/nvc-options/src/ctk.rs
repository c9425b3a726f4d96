//! Lists the commands and options of nvidia-ctk, with the equivalent environment variables.

mod examples;

use crate::table::{Command, Opt, command, flag, group, value, values};

pub const PROGRAM: &str = "nvidia-ctk";

/// Options of every command, unless it has its own of the same name.
#[rustfmt::skip]
pub static GLOBAL: [Opt; 4] = [
    flag("debug", "Log every step").short('d').env(&["NVIDIA_CTK_DEBUG"]),
    flag("quiet", "Log errors only; takes precedence over --debug").env(&["NVIDIA_CTK_QUIET"]),
    value("config", "FILE", "The toolkit's config.toml").env(&["NVIDIA_CTK_CONFIG"]),
    flag("help", "Print help").short('h'),
];

#[rustfmt::skip]
pub static ROOT: Command = Command {
    every: &GLOBAL,
    options: &[flag("version", "Print the version").short('v').aliases(&["V"])],
    after: examples::ROOT,
    ..group(
        PROGRAM,
        "Generate CDI specifications, configure container engines for NVIDIA GPUs, and diagnose problems",
        &[CDI, CONFIGURATION, RUNTIME, INFO, DOCTOR, SYSTEM, HOOK],
    )
};

#[rustfmt::skip]
const CDI: Command = group("cdi", "Generate, list, check and change CDI specifications", &[
    command("generate", "Write a specification of this machine's GPUs", GENERATE, examples::GENERATE),
    command("verify", "Compare specifications with this machine", VERIFY, examples::VERIFY),
    command("list", "Print the names of all devices that specifications define", LIST, examples::LIST),
    group("transform", "Change a specification", &[
        command("root", "Move paths from one root to another", TRANSFORM, examples::TRANSFORM),
    ]),
]);

#[rustfmt::skip]
const CONFIGURATION: Command = Command {
    commands: &[Command {
        aliases: &["create-default", "generate-default"],
        ..command("default", "Print the default configuration", DEFAULT, examples::DEFAULT)
    }],
    ..command("config", "Print or change the toolkit's config.toml", CONFIG, examples::CONFIG)
};

#[rustfmt::skip]
const RUNTIME: Command = group("runtime", "Configure container engines", &[
    command("configure", "Register the NVIDIA runtime with an engine", CONFIGURE, examples::CONFIGURE),
    command("unregister", "Undo all registrations, before the toolkit is removed", UNREGISTER, examples::UNREGISTER),
]);

#[rustfmt::skip]
const INFO: Command = command("info", "Print what a bug report needs: driver, system, engines, programs and GPUs", FACTS, examples::INFO);

#[rustfmt::skip]
const DOCTOR: Command = command("doctor", "Find problems, and say how to repair them", PROBLEMS, examples::DOCTOR);

#[rustfmt::skip]
const SYSTEM: Command = group("system", "Create device nodes and links to them", &[
    command("create-dev-char-symlinks", "Create the links /dev/char/MAJOR:MINOR", LINKS, examples::LINKS),
    command("create-device-nodes", "Create the driver's control nodes", NODES, examples::NODES),
]);

const HOOK: Command = Command {
    passes_on: true,
    ..command(
        "hook",
        "Run a hook of a CDI specification, as nvidia-cdi-hook does",
        &[],
        "",
    )
};

#[rustfmt::skip]
const GENERATE: &[Opt] = &[
    value("output", "FILE", "Write to this file instead of standard output").env(&["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"]),
    value("format", "FORMAT", "json or yaml; by default that of the file's name, or yaml")
        .env(&["NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT"]),
    value("mode", "MODE", "auto, csv, gdrcopy, gds, imex, management, mig-caps, mofed, nvml, nvswitch or wsl")
        .aliases(&["discovery-mode"]).env(&["NVIDIA_CTK_CDI_GENERATE_MODE"]).default("auto"),
    value("driver-root", "DIR", "Where the driver's files are").env(&["NVIDIA_CTK_DRIVER_ROOT"]),
    value("dev-root", "DIR", "Where /dev is; the driver root by default").env(&["NVIDIA_CTK_DEV_ROOT"]),
    values("device-name-strategy", "NAME", "index, uuid or type-index; index and uuid by default")
        .env(&["NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES"]),
    values("device-id", "ID", "Only these devices: indices, GPU:MIG, UUIDs or their starts, all or none")
        .aliases(&["device-ids", "device", "devices"]).env(&["NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS"]),
    flag("no-all-device", "No device all").env(&["NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE"]),
    value("vendor", "NAME", "Vendor of the devices").aliases(&["cdi-vendor"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_VENDOR"]).default("nvidia.com"),
    value("class", "NAME", "Class of the devices").aliases(&["cdi-class"]).env(&["NVIDIA_CTK_CDI_GENERATE_CLASS"])
        .default("gpu"),
    value("nvidia-cdi-hook-path", "FILE", "The hook program; nvidia-cdi-hook in PATH by default")
        .aliases(&["nvidia-ctk-path"]).env(&["NVIDIA_CTK_CDI_HOOK_PATH"]),
    value("ldconfig-path", "FILE", "The host's ldconfig for the hook update-ldcache")
        .env(&["NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH"]),
    values("config-search-path", "DIR", "Look for configuration files here first")
        .env(&["NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS"]),
    values("library-search-path", "DIR", "Look for libraries here first")
        .env(&["NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS"]),
    values("csv.file", "FILE", "Mode csv: files to be read").env(&["NVIDIA_CTK_CDI_GENERATE_CSV_FILES"]),
    values("csv.ignore-pattern", "PATTERN", "Mode csv: links to be left out")
        .env(&["NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS"]),
    value("csv.compat-container-root", "DIR",
        "Mode csv: directory of images' CUDA compatibility libraries for Orin [default: /usr/local/cuda/compat_orin]")
        .env(&["NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT"]),
    values("disable-hook", "NAME", "Leave out this hook, or all").aliases(&["disable-hooks"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"]),
    values("enable-hook", "NAME", "Add this hook even if it is disabled by default").aliases(&["enable-hooks"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS"]),
    values("feature-flag", "NAME", "Switch a feature on or off").aliases(&["feature-flags"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS"]),
    value("hooks", "KIND", "separate, or merged: one process instead of six").default("separate"),
    value("style", "STYLE", "files, or live: a hook finds the driver's files when a container starts").default("files"),
    flag("no-compat32", "Leave out 32-bit libraries"),
    flag("gids", "Record the groups of device nodes; needs engines that know CDI 0.7.0"),
    value("cdi-version", "VERSION", "Fail if the specification needs a later version of the format"),
];

#[rustfmt::skip]
const VERIFY: &[Opt] = &[
    values("spec-dir", "DIR", "Where specifications are").env(&["NVIDIA_CTK_CDI_SPEC_DIRS"]),
    value("format", "FORMAT", "text or json").default("text"),
    flag("details", "Print each difference of a file"),
    flag("quick", "Compare only what procfs and sysfs say, such as MIG devices and modules; ask no GPU"),
];

#[rustfmt::skip]
const LIST: &[Opt] = &[
    value("format", "FORMAT", "text or json").default("text"),
    values("spec-dir", "DIR", "Where specifications are; /etc/cdi and /var/run/cdi by default")
        .env(&["NVIDIA_CTK_CDI_SPEC_DIRS"]),
];

#[rustfmt::skip]
const TRANSFORM: &[Opt] = &[
    value("from", "DIR", "The old root"),
    value("to", "DIR", "The new root"),
    value("relative-to", "SIDE", "Move paths of the host or of the container").default("host"),
    value("input", "FILE", "The specification; standard input by default").default("-"),
    value("output", "FILE", "Write to this file instead of standard output"),
];

#[rustfmt::skip]
const CONFIG: &[Opt] = &[
    value("config-file", "FILE", "The file to be read").aliases(&["config"]).short('c'),
    values("set", "KEY[=VALUE]", "Set a key; lists are separated by colons"),
    value("set-list-separator", "C", "Separator of list items").default(":"),
    flag("in-place", "Change the file").short('i'),
    value("output", "FILE", "Write to this file").short('o'),
];

const DEFAULT: &[Opt] = &[value("output", "FILE", "Write to this file").short('o')];

#[rustfmt::skip]
const CONFIGURE: &[Opt] = &[
    value("runtime", "ENGINE", "docker, containerd or crio").default("docker"),
    value("config", "FILE", "The engine's configuration file"),
    value("drop-in-config", "FILE", "The file to be imported by it; empty for none"),
    value("config-source", "SOURCE", "file or command: where the present configuration is read from").default("file"),
    value("executable-path", "FILE", "The program to be asked with --config-source=command"),
    value("config-mode", "MODE", "config-file, or oci-hook: a file for a hooks directory").default("config-file"),
    value("oci-hook-path", "FILE", "Write the hook file here instead of to standard output"),
    value("nvidia-runtime-name", "NAME", "The runtime's name").default("nvidia"),
    value("nvidia-runtime-path", "FILE", "The runtime program; the one beside nvidia-ctk, or in /usr/bin, by default")
        .aliases(&["runtime-path"]),
    value("nvidia-runtime-hook-path", "FILE",
        "The hook program; the one beside nvidia-ctk, or in /usr/bin, by default"),
    flag("nvidia-set-as-default", "Make it the engine's default runtime").aliases(&["set-as-default"]),
    flag("cdi.enabled", "Let the engine resolve CDI names").aliases(&["cdi.enable", "enable-cdi"]),
    flag("remove", "Remove the runtime from all files that the engine reads"),
    flag("restart", "Restart the engine if its files were changed"),
    flag("dry-run", "Print the result instead of writing it"),
];

#[rustfmt::skip]
const UNREGISTER: &[Opt] = &[
    values("program", "NAME", "Only what names these programs; all of the toolkit by default"),
    flag("dry-run", "Say what would be done, and change nothing"),
];

#[rustfmt::skip]
const FACTS: &[Opt] = &[
    value("format", "FORMAT", "text or json").default("text"),
    flag("no-gpus", "Do not ask for the GPUs, which wakes those that sleep"),
];

#[rustfmt::skip]
const PROBLEMS: &[Opt] = &[
    value("format", "FORMAT", "text or json").default("text"),
    flag("details", "Print each difference of a specification"),
];

#[rustfmt::skip]
const LINKS: &[Opt] = &[
    value("dev-char-path", "DIR", "Where the links go").env(&["DEV_CHAR_PATH"]).default("/dev/char"),
    value("driver-root", "DIR", "Where modprobe runs").env(&["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]).default("/"),
    flag("create-all", "Links for all possible nodes instead of the existing ones").env(&["CREATE_ALL"]),
    flag("load-kernel-modules", "Load the modules first; needs --create-all").env(&["LOAD_KERNEL_MODULES"]),
    flag("create-device-nodes", "Create the control nodes too; needs --create-all").env(&["CREATE_DEVICE_NODES"]),
    flag("dry-run", "Log what would be done").env(&["DRY_RUN"]),
];

#[rustfmt::skip]
const NODES: &[Opt] = &[
    value("root", "DIR", "Where the driver is").aliases(&["driver-root"])
        .env(&["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"]).default("/"),
    value("dev-root", "DIR", "Where /dev is; the driver root by default").env(&["NVIDIA_DEV_ROOT", "DEV_ROOT"]),
    flag("control-devices", "nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools"),
    flag("load-kernel-modules", "Load the modules first"),
    flag("dry-run", "Log what would be done").env(&["DRY_RUN"]),
];
