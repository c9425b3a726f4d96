//! Lists the commands and options of nvidia-ctk, with the equivalent environment variables.
//!
//! Help, manual pages and completions are generated from this table, and command lines are parsed according to it.

mod examples;

use clap::{Arg, ArgAction, Command};

pub use examples::examples;

pub const PROGRAM: &str = "nvidia-ctk";

#[derive(Debug)]
pub struct Opt {
    pub long: &'static str,
    pub aliases: &'static [&'static str],
    pub short: Option<char>,
    /// Equivalent variables; the first one that is set counts.
    pub env: &'static [&'static str],
    pub takes: Takes,
    pub default: &'static str,
    pub help: &'static str,
}

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing, or `=true` or `=false`.
    Flag,
    /// A value of this name.
    Text(&'static str),
    /// Values of this name, repeated or separated by commas.
    List(&'static str),
}

/// A command, or a group of commands.
#[derive(Debug)]
pub struct CommandNode {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    pub options: &'static [Opt],
    pub commands: &'static [CommandNode],
}

const fn opt(long: &'static str, takes: Takes, help: &'static str) -> Opt {
    Opt {
        long,
        aliases: &[],
        short: None,
        env: &[],
        takes,
        default: "",
        help,
    }
}

impl Opt {
    const fn short(self, short: char) -> Self {
        Self {
            short: Some(short),
            ..self
        }
    }

    const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn env(self, env: &'static [&'static str]) -> Self {
        Self { env, ..self }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// Returns true if a name, without dashes, is this option's.
    pub fn is_called(&self, name: &str) -> bool {
        let is_short = |short: char| name.strip_prefix(short).is_some_and(str::is_empty);
        self.long == name || self.aliases.contains(&name) || self.short.is_some_and(is_short)
    }
}

const fn command(name: &'static str, about: &'static str, options: &'static [Opt]) -> CommandNode {
    CommandNode {
        name,
        aliases: &[],
        about,
        options,
        commands: &[],
    }
}

const fn group(
    name: &'static str,
    about: &'static str,
    commands: &'static [CommandNode],
) -> CommandNode {
    CommandNode {
        name,
        aliases: &[],
        about,
        options: &[],
        commands,
    }
}

use Takes::{Flag, List, Text};

/// Options of every command, unless it has its own of the same name.
pub const GLOBAL: &[Opt] = &[
    opt("debug", Flag, "Log every step")
        .short('d')
        .env(&["NVIDIA_CTK_DEBUG"]),
    opt(
        "quiet",
        Flag,
        "Log errors only; takes precedence over --debug",
    )
    .env(&["NVIDIA_CTK_QUIET"]),
    opt("config", Text("FILE"), "The toolkit's config.toml").env(&["NVIDIA_CTK_CONFIG"]),
];

pub const ROOT: CommandNode = CommandNode {
    name: PROGRAM,
    aliases: &[],
    about: "Generates CDI specifications, configures container engines for NVIDIA GPUs, and diagnoses problems",
    options: &[],
    commands: &[
        group(
            "cdi",
            "Generates, lists, checks and changes CDI specifications",
            &[
                command(
                    "generate",
                    "Write a specification of this machine's GPUs",
                    GENERATE,
                ),
                command("verify", "Compare specifications with this machine", VERIFY),
                command(
                    "list",
                    "Print the names of all devices that specifications define",
                    LIST,
                ),
                group(
                    "transform",
                    "Changes a specification",
                    &[command(
                        "root",
                        "Move paths from one root to another",
                        TRANSFORM,
                    )],
                ),
            ],
        ),
        CommandNode {
            name: "config",
            aliases: &[],
            about: "Print or change the toolkit's config.toml",
            options: CONFIG,
            commands: &[CommandNode {
                name: "default",
                aliases: &["create-default", "generate-default"],
                about: "Print the default configuration",
                options: &[opt("output", Text("FILE"), "Write to this file").short('o')],
                commands: &[],
            }],
        },
        group(
            "runtime",
            "Configures container engines",
            &[
                command(
                    "configure",
                    "Register the NVIDIA runtime with an engine",
                    CONFIGURE,
                ),
                command(
                    "unregister",
                    "Undo all registrations, before the toolkit is removed",
                    UNREGISTER,
                ),
            ],
        ),
        command(
            "info",
            "Print this machine's driver, specifications and engines",
            &[],
        ),
        command(
            "doctor",
            "Find problems, and say how to repair them",
            DOCTOR,
        ),
        group(
            "system",
            "Creates device nodes and links to them",
            &[
                command(
                    "create-dev-char-symlinks",
                    "Create the links /dev/char/MAJOR:MINOR",
                    LINKS,
                ),
                command(
                    "create-device-nodes",
                    "Create the driver's control nodes",
                    NODES,
                ),
            ],
        ),
        command(
            "hook",
            "Run a hook of a CDI specification, as nvidia-cdi-hook does",
            &[],
        ),
    ],
};

const GENERATE: &[Opt] = &[
    opt(
        "output",
        Text("FILE"),
        "Write to this file instead of standard output",
    )
    .env(&["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"]),
    opt(
        "format",
        Text("FORMAT"),
        "json or yaml; by default that of the file's name, or yaml",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT"]),
    opt(
        "mode",
        Text("MODE"),
        "auto, csv, gdrcopy, gds, imex, management, mig-caps, mofed, nvml, nvswitch or wsl",
    )
    .aliases(&["discovery-mode"])
    .env(&["NVIDIA_CTK_CDI_GENERATE_MODE"])
    .default("auto"),
    opt("driver-root", Text("DIR"), "Where the driver's files are")
        .env(&["NVIDIA_CTK_DRIVER_ROOT"]),
    opt(
        "dev-root",
        Text("DIR"),
        "Where /dev is; the driver root by default",
    )
    .env(&["NVIDIA_CTK_DEV_ROOT"]),
    opt(
        "device-name-strategy",
        List("NAME"),
        "index, uuid or type-index; index and uuid by default",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES"]),
    opt(
        "device-id",
        List("ID"),
        "Only these devices: indices, GPU:MIG, UUIDs or their starts, all or none",
    )
    .aliases(&["device-ids", "device", "devices"])
    .env(&["NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS"]),
    opt("no-all-device", Flag, "No device all").env(&["NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE"]),
    opt("vendor", Text("NAME"), "Vendor of the devices")
        .aliases(&["cdi-vendor"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_VENDOR"])
        .default("nvidia.com"),
    opt("class", Text("NAME"), "Class of the devices")
        .aliases(&["cdi-class"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_CLASS"])
        .default("gpu"),
    opt(
        "nvidia-cdi-hook-path",
        Text("FILE"),
        "The hook program; nvidia-cdi-hook in PATH by default",
    )
    .aliases(&["nvidia-ctk-path"])
    .env(&["NVIDIA_CTK_CDI_HOOK_PATH"]),
    opt(
        "ldconfig-path",
        Text("FILE"),
        "The host's ldconfig for the hook update-ldcache",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH"]),
    opt(
        "config-search-path",
        List("DIR"),
        "Look for configuration files here only",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS"]),
    opt(
        "library-search-path",
        List("DIR"),
        "Look for libraries here only",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS"]),
    opt("csv.file", List("FILE"), "Mode csv: files to be read")
        .env(&["NVIDIA_CTK_CDI_GENERATE_CSV_FILES"]),
    opt(
        "csv.ignore-pattern",
        List("PATTERN"),
        "Mode csv: links to be left out",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS"]),
    opt(
        "csv.compat-container-root",
        Text("DIR"),
        "Mode csv: directory of images' CUDA compatibility libraries for Orin [default: /usr/local/cuda/compat_orin]",
    )
    .env(&["NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT"]),
    opt("disable-hook", List("NAME"), "Leave out this hook, or all")
        .aliases(&["disable-hooks"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS"]),
    opt(
        "enable-hook",
        List("NAME"),
        "Add this hook even if it is disabled by default",
    )
    .aliases(&["enable-hooks"])
    .env(&["NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS"]),
    opt("feature-flag", List("NAME"), "Switch a feature on or off")
        .aliases(&["feature-flags"])
        .env(&["NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS"]),
    opt(
        "hooks",
        Text("KIND"),
        "separate, or merged: one process instead of six",
    )
    .default("separate"),
    opt(
        "style",
        Text("STYLE"),
        "files, or live: a hook finds the driver's files when a container starts",
    )
    .default("files"),
    opt(
        "gids",
        Flag,
        "Record the groups of device nodes; needs engines that know CDI 0.7.0",
    ),
    opt(
        "cdi-version",
        Text("VERSION"),
        "Fail if the specification needs a later version of the format",
    ),
];

const VERIFY: &[Opt] = &[
    opt("spec-dir", List("DIR"), "Where specifications are").env(&["NVIDIA_CTK_CDI_SPEC_DIRS"]),
    opt("format", Text("FORMAT"), "text or json").default("text"),
    opt("details", Flag, "Print each difference of a file"),
    opt(
        "quick",
        Flag,
        "Compare only MIG devices and, if there are any, the driver's version; ask no GPU",
    ),
];

const LIST: &[Opt] = &[opt(
    "spec-dir",
    List("DIR"),
    "Where specifications are; /etc/cdi and /var/run/cdi by default",
)
.env(&["NVIDIA_CTK_CDI_SPEC_DIRS"])];

const TRANSFORM: &[Opt] = &[
    opt("from", Text("DIR"), "The old root"),
    opt("to", Text("DIR"), "The new root"),
    opt(
        "relative-to",
        Text("SIDE"),
        "Move paths of the host or of the container",
    )
    .default("host"),
    opt(
        "input",
        Text("FILE"),
        "The specification; standard input by default",
    )
    .default("-"),
    opt(
        "output",
        Text("FILE"),
        "Write to this file instead of standard output",
    ),
];

const CONFIG: &[Opt] = &[
    opt("config-file", Text("FILE"), "The file to be read")
        .aliases(&["config"])
        .short('c'),
    opt(
        "set",
        List("KEY[=VALUE]"),
        "Set a key; lists are separated by colons",
    ),
    opt("set-list-separator", Text("C"), "Separator of list items").default(":"),
    opt("in-place", Flag, "Change the file").short('i'),
    opt("output", Text("FILE"), "Write to this file").short('o'),
];

const CONFIGURE: &[Opt] = &[
    opt("runtime", Text("ENGINE"), "docker, containerd or crio").default("docker"),
    opt("config", Text("FILE"), "The engine's configuration file"),
    opt(
        "drop-in-config",
        Text("FILE"),
        "The file to be imported by it; empty for none",
    ),
    opt(
        "config-source",
        Text("SOURCE"),
        "file or command: where the present configuration is read from",
    )
    .default("file"),
    opt(
        "executable-path",
        Text("FILE"),
        "The program to be asked with --config-source=command",
    ),
    opt(
        "config-mode",
        Text("MODE"),
        "config-file, or oci-hook: a file for a hooks directory",
    )
    .default("config-file"),
    opt(
        "oci-hook-path",
        Text("FILE"),
        "Write the hook file here instead of to standard output",
    ),
    opt("nvidia-runtime-name", Text("NAME"), "The runtime's name").default("nvidia"),
    opt(
        "nvidia-runtime-path",
        Text("FILE"),
        "The runtime program; the one beside nvidia-ctk, or in /usr/bin, by default",
    )
    .aliases(&["runtime-path"]),
    opt(
        "nvidia-runtime-hook-path",
        Text("FILE"),
        "The hook program; the one beside nvidia-ctk, or in /usr/bin, by default",
    ),
    opt(
        "nvidia-set-as-default",
        Flag,
        "Make it the engine's default runtime",
    )
    .aliases(&["set-as-default"]),
    opt("cdi.enabled", Flag, "Let the engine resolve CDI names")
        .aliases(&["cdi.enable", "enable-cdi"]),
    opt(
        "remove",
        Flag,
        "Undo an earlier call, to the byte if the file has not changed since",
    ),
    opt(
        "for-package",
        Text("PACKAGE"),
        "Leave an existing registration alone; with --remove, undo only what --for-package registered",
    )
    .env(&["NVIDIA_CTK_FOR_PACKAGE"]),
    opt("dry-run", Flag, "Print the result instead of writing it"),
];

const UNREGISTER: &[Opt] = &[
    opt(
        "program",
        List("NAME"),
        "Only what names these programs; all of the toolkit by default",
    ),
    opt(
        "dry-run",
        Flag,
        "Say what would be done, and change nothing",
    ),
];

const DOCTOR: &[Opt] = &[
    opt("format", Text("FORMAT"), "text or json").default("text"),
    opt("details", Flag, "Print each difference of a specification"),
];

const LINKS: &[Opt] = &[
    opt("dev-char-path", Text("DIR"), "Where the links go")
        .env(&["DEV_CHAR_PATH"])
        .default("/dev/char"),
    opt("driver-root", Text("DIR"), "Where modprobe runs")
        .env(&["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"])
        .default("/"),
    opt(
        "create-all",
        Flag,
        "Links for all possible nodes instead of the existing ones",
    )
    .env(&["CREATE_ALL"]),
    opt(
        "load-kernel-modules",
        Flag,
        "Load the modules first; needs --create-all",
    )
    .env(&["LOAD_KERNEL_MODULES"]),
    opt(
        "create-device-nodes",
        Flag,
        "Create the control nodes too; needs --create-all",
    )
    .env(&["CREATE_DEVICE_NODES"]),
    opt("dry-run", Flag, "Log what would be done").env(&["DRY_RUN"]),
];

const NODES: &[Opt] = &[
    opt("root", Text("DIR"), "Where the driver is")
        .aliases(&["driver-root"])
        .env(&["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"])
        .default("/"),
    opt(
        "dev-root",
        Text("DIR"),
        "Where /dev is; the driver root by default",
    )
    .env(&["NVIDIA_DEV_ROOT", "DEV_ROOT"]),
    opt(
        "control-devices",
        Flag,
        "nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools",
    ),
    opt("load-kernel-modules", Flag, "Load the modules first"),
    opt("dry-run", Flag, "Log what would be done").env(&["DRY_RUN"]),
];

/// Returns the options of a command, including the global ones.
pub fn options(node: &CommandNode) -> impl Iterator<Item = &'static Opt> {
    let own = node.options;
    let is_free = move |global: &&Opt| {
        !own.iter()
            .any(|opt| opt.long == global.long || opt.aliases.contains(&global.long))
    };
    own.iter().chain(GLOBAL.iter().filter(is_free))
}

/// Converts the table to a clap command, which makes the help texts; `line` parses command lines.
pub fn clap() -> Command {
    describe(&ROOT)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .arg(
            Arg::new("version")
                .long("version")
                .short('v')
                .action(ArgAction::SetTrue)
                .help("Print the version"),
        )
}

fn describe(node: &'static CommandNode) -> Command {
    let mut command = Command::new(node.name)
        .about(node.about)
        .aliases(node.aliases)
        .disable_help_subcommand(true)
        .max_term_width(100)
        .after_help(examples::after_help(node.name))
        .args(options(node).map(arg))
        .subcommands(node.commands.iter().map(describe));
    if node.name == "hook" {
        command = command.disable_help_flag(true);
    }
    command
}

fn arg(opt: &'static Opt) -> Arg {
    let mut help = opt.help.to_string();
    if !opt.default.is_empty() {
        help += &format!(" [default: {}]", opt.default);
    }
    if let Some(env) = opt.env.first() {
        help += &format!(" [${env}]");
    }
    let arg = Arg::new(opt.long)
        .long(opt.long)
        .short(opt.short)
        .visible_aliases(opt.aliases)
        .help(help);
    match opt.takes {
        Flag => arg.action(ArgAction::SetTrue),
        Text(name) | List(name) => arg.value_name(name).action(ArgAction::Append),
    }
}
