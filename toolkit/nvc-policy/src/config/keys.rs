//! Lists every key of config.toml: name, type, default, what a new file has, and the text of the manual page.
//!
//! The parser reads a value only through a key of this table, `nvidia-ctk config` sets values by it and writes new
//! files from it, and nvc-pages writes config.toml(5) from it.

use std::path::PathBuf;

use nvc_program::hints;
use toml_edit::Item;

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The full name, including tables.
    pub name: &'static str,
    pub kind: Kind,
    /// The default in TOML.
    pub default: &'static str,
    /// What a new file has.
    pub shown: Shown,
    /// The values that a text can have; empty if it can have any.
    pub words: &'static [&'static str],
    /// What the manual page says: a sentence or more, in which words in backquotes are bold.
    pub text: &'static str,
    /// Stores a value; returns None if it has another type.
    pub(super) store: fn(&mut Config, &Item) -> Option<()>,
}

/// What a new configuration file has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Its default.
    Default,
    /// A comment with this example, in TOML, for as long as the key is unset.
    Example(&'static str),
    Nothing,
}

impl Key {
    /// Returns the table that has the key, or "", and the key's name in it.
    pub fn place(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }
}

/// Returns the key of this name.
pub fn find(name: &str) -> Option<Key> {
    KEYS.iter().copied().find(|key| key.name == name)
}

/// Returns true if keys are in a table of this name.
pub fn is_table(name: &str) -> bool {
    KEYS.iter().any(|key| {
        key.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

/// Returns the key nearest to `name`, if it is near enough to be a typo.
pub fn nearest(name: &str) -> Option<&'static str> {
    let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    let last = name.rsplit('.').next().unwrap_or(name);
    // A known key in another table.
    hints::nearest(name, &known).or_else(|| {
        let mut known = known.into_iter();
        known.find(|key| key.rsplit('.').next() == Some(last) && last.len() > 4)
    })
}

/// The values of [`MODE`].
pub const MODES: &[&str] = &["auto", "cdi", "csv", "jit-cdi", "legacy"];

/// Those of `log-level`.
const LEVELS: &[&str] = &[
    "trace", "debug", "info", "warning", "warn", "error", "fatal", "panic",
];

/// Makes [`Config`], its tables and [`KEYS`]. A row is
/// `"NAME" [(CONSTANT)] field: type = default [, has its | has "EXAMPLE"] [, of WORDS];`; its comment is `Key::text`.
/// A field that is an option is None if the key is not set; its default is what the programs do then.
macro_rules! keys {
    (@shown) => { Shown::Nothing };
    (@shown its) => { Shown::Default };
    (@shown $example:literal) => { Shown::Example($example) };
    (@key [$($place:tt)+] [$($text:literal)+] $name:expr, $type:ty, $default:tt,
        [$($shown:tt)?], [$($words:expr)?]) => {
        Key {
            name: $name,
            kind: <$type as Value>::KIND,
            default: stringify!($default),
            shown: keys!(@shown $($shown)?),
            words: { let words: &[&str] = &[]; $(let words = { let _ = words; $words };)? words },
            text: concat!($($text),+),
            store: |config, item| { config.$($place)+ = <$type as Value>::read(item)?; Some(()) },
        }
    };
    (
        Config { $( $(#[doc = $text:literal])+ $name:literal $(($constant:ident))? $field:ident: $type:ty = $default:tt
            $(, has $shown:tt)? $(, of $words:expr)?; )* }
        $( $(#[$about:meta])* $table:literal $member:ident: $Table:ident { $(
            $(#[doc = $inner_text:literal])+ $inner_name:literal $(($inner_constant:ident))?
            $inner:ident: $inner_type:ty = $inner_default:tt $(, has $inner_shown:tt)? $(, of $inner_words:expr)?;
        )* } )*
    ) => {
        /// The content of config.toml, with defaults for missing keys.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $( $(#[doc = $text])+ pub $field: $type, )*
            $( $(#[$about])* pub $member: $Table, )*
            /// The keys in the file, with their lines.
            pub lines: Vec<(String, usize)>,
            /// The file that was read; None if all values are defaults.
            pub file: Option<PathBuf>,
            /// The program's name, if it determines the mode.
            pub forced_by: Option<String>,
        }

        $(
            $(#[$about])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Table { $( $(#[doc = $inner_text])+ pub $inner: $inner_type, )* }
        )*

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $( $field: <$type as Value>::new(&$default), )*
                    $( $member: $Table { $( $inner: <$inner_type as Value>::new(&$inner_default), )* }, )*
                    lines: Vec::new(),
                    file: None,
                    forced_by: None,
                }
            }
        }

        /// Every key there is, in the order of a new file.
        pub const KEYS: &[Key] = &[
            $( keys!(@key [$field] [$($text)+] $name, $type, $default, [$($shown)?], [$($words)?]), )*
            $( $( keys!(@key [$member.$inner] [$($inner_text)+] concat!($table, ".", $inner_name),
                $inner_type, $inner_default, [$($inner_shown)?], [$($inner_words)?]), )* )*
        ];

        $( $( #[doc = concat!("`", $name, "`.")] pub const $constant: &str = $name; )? )*
        $( $( $( #[doc = concat!("`", $table, ".", $inner_name, "`.")]
            pub const $inner_constant: &str = concat!($table, ".", $inner_name); )? )* )*
    };
}

keys! {
    Config {
        /// Let annotations with CDI names count in every container, and alone. NVIDIA's toolkit ignores this key.
        "accept-annotations" (ACCEPT_ANNOTATIONS) accept_annotations: bool = false;
        /// More kinds of CDI devices (VENDOR/CLASS) that variables may name. NVIDIA's toolkit ignores this key.
        "accept-cdi-kinds" (ACCEPT_CDI_KINDS) accept_cdi_kinds: Vec<String> = [];
        /// Accept `NVIDIA_GDS`, `NVIDIA_MOFED`, `NVIDIA_GDRCOPY` and `NVIDIA_NVSWITCH` in unprivileged containers whose
        /// GPUs come from mounts. NVIDIA's toolkit ignores this key.
        "accept-nvidia-features-when-unprivileged" (ACCEPT_FEATURES) accept_features_unprivileged: bool = false;
        /// Accept requests by mounts below `/var/run/nvidia-container-devices`.
        "accept-nvidia-visible-devices-as-volume-mounts" accept_volume_mounts: bool = false, has "false";
        /// Accept requests in the environment of containers that are not privileged. If false, they are ignored with a
        /// warning, and device plugins must use mounts.
        "accept-nvidia-visible-devices-envvar-when-unprivileged" (ACCEPT_VARIABLES) accept_envvar_unprivileged: bool = true, has "true";
        /// Ignore requirements (`NVIDIA_REQUIRE_*`) of all images.
        "disable-require" disable_require: bool = false, has its;
        /// What `NVIDIA_DRIVER_CAPABILITIES` may request, and what `all` means.
        "supported-driver-capabilities" (SUPPORTED_CAPABILITIES) supported_driver_capabilities: String
            = "compat32,compute,display,graphics,ngx,utility,video", has its;
        /// Variables, separated by commas, by which Docker Swarm says which GPUs it has chosen, such as
        /// `DOCKER_RESOURCE_GPU`. They narrow `NVIDIA_VISIBLE_DEVICES`.
        "swarm-resource" swarm_resource: String = "", has "\"DOCKER_RESOURCE_GPU\"";
    }

    /// `[features]`.
    "features" features: Features {
        /// Counts only if `modes.legacy.cuda-compat-mode` is none of its values: then it is `mount`, and otherwise
        /// `disabled`.
        "allow-cuda-compat-libs-from-container" allow_cuda_compat_libs_from_container: bool = false;
        /// Permit an `ldconfig` without @.
        "allow-ldconfig-from-container" allow_ldconfig_from_container: bool = false;
        /// Known for compatibility: unknown members of config.json are always kept.
        "allow-unknown-oci-spec-fields" allow_unknown_oci_spec_fields: bool = false;
        /// Add no hook for the image's CUDA compatibility libraries.
        "disable-cuda-compat-lib-hook" disable_cuda_compat_lib_hook: bool = false;
        /// Create no nodes of IMEX channels that are missing on the host (`--no-create-imex-channels`).
        "disable-imex-channel-creation" disable_imex_channel_creation: bool = false;
        /// Ignore all requests for IMEX channels.
        "ignore-imex-channel-requests" ignore_imex_channel_requests: bool = false;
        /// Do not add the groups of device nodes to the container's process.
        "no-additional-gids-for-device-nodes" no_additional_gids_for_device_nodes: bool = false;
    }

    /// `[nvidia-container-cli]`: the work of the prestart hook, and of legacy mode; root and ldconfig count in all
    /// modes.
    "nvidia-container-cli" cli: Cli {
        /// File of its debug log.
        "debug" debug: String = "", has "\"/var/log/nvidia-container-toolkit.log\"";
        /// Variables, NAME=VALUE, of nvidia-container-cli.
        "environment" environment: Vec<String> = [], has its;
        /// The host's ld.so.cache.
        "ldcache" (LDCACHE) ldcache: String = "", has "\"/etc/ld.so.cache\"";
        /// The ldconfig that updates a container's cache. With @ it is the host's; `auto` and @/sbin/ldconfig itself
        /// mean that none runs if the image's cache is sound. Another path without @ is the container's:
        /// `features.allow-ldconfig-from-container` must permit that.
        "ldconfig" (LDCONFIG) ldconfig: Option<String> = "@/sbin/ldconfig", has its;
        /// Load the driver's kernel modules and create its control nodes if they are missing; also in mode jit-cdi.
        "load-kmods" (LOAD_KMODS) load_kmods: bool = true, has its;
        /// Change no device rules. Rootless engines do not need it: without rights on the cgroup the rules are left
        /// alone.
        "no-cgroups" (NO_CGROUPS) no_cgroups: bool = false, has "false";
        /// Passed on as `--no-pivot`.
        "no-pivot" (NO_PIVOT) no_pivot: bool = false;
        /// The nvidia-container-cli to run; by default the first in PATH.
        "path" (CLI_PATH) path: String = "", has "\"/usr/bin/nvidia-container-cli\"";
        /// Root of the driver, if it is not the machine's own, for example that of a driver container.
        "root" (ROOT) root: String = "", has "\"/run/nvidia/driver\"";
        /// User and group, USER[:GROUP], of the process that asks NVML. On SUSE root:video by default.
        "user" (USER) user: Option<String> = "", has "\"root:video\"";
    }

    /// `[nvidia-container-runtime]`.
    "nvidia-container-runtime" runtime: Runtime {
        /// File of the runtime's log.
        "debug" debug: String = "/dev/null", has "\"/var/log/nvidia-container-runtime.log\"";
        /// `debug`, `info`, `warning` or `error`.
        "log-level" (LOG_LEVEL) log_level: String = "info", has its, of LEVELS;
        /// `auto`, `jit-cdi`, `cdi`, `legacy` or `csv`; see `nvidia-container-runtime`(8).
        "mode" (MODE) mode: String = "auto", has its, of MODES;
        /// Low-level runtimes, by name or absolute path; the first that exists is used.
        "runtimes" runtimes: Vec<String> = ["runc", "crun"], has its;
        /// Annotations that begin so request CDI devices.
        "modes.cdi.annotation-prefixes" (ANNOTATION_PREFIXES)
            cdi_annotation_prefixes: Vec<String> = ["cdi.k8s.io/"], has its;
        /// Kind of names without a kind.
        "modes.cdi.default-kind" (DEFAULT_KIND)
            cdi_default_kind: String = "nvidia.com/gpu", has its;
        /// Directories of specifications; a later one wins.
        "modes.cdi.spec-dirs" cdi_spec_dirs: Vec<String> = ["/etc/cdi", "/var/run/cdi"], has its;
        /// Directory of the image with CUDA compatibility libraries, in mode csv.
        "modes.csv.compat-container-root" csv_compat_container_root: String = "";
        /// Directory of a Jetson's file lists.
        "modes.csv.mount-spec-path" csv_mount_spec_path: String
            = "/etc/nvidia-container-runtime/host-files-for-container.d", has its;
        /// `honour`: only the files of the requested `NVIDIA_DRIVER_CAPABILITIES`; `ignore`: all. NVIDIA's toolkit
        /// ignores this key.
        "modes.jit-cdi.driver-capabilities" (JIT_CAPABILITIES)
            jit_driver_capabilities: String = "ignore", of &["ignore", "honour"];
        /// Hooks to leave out, as `--disable-hook` of `nvidia-ctk cdi generate`.
        "modes.jit-cdi.nvcdi-disable-hooks" jit_disable_hooks: Vec<String> = [];
        /// As `--feature-flag` of `nvidia-ctk cdi generate`.
        "modes.jit-cdi.nvcdi-feature-flags" jit_feature_flags: Vec<String> = [];
        /// What an unmet `NVIDIA_REQUIRE_*` is: an error (`honour`), a warning in the log (`warn`), or not checked
        /// (`ignore`). NVIDIA's toolkit ignores this key.
        "modes.jit-cdi.requirements" (JIT_REQUIREMENTS)
            jit_requirements: String = "warn", of &["warn", "honour", "ignore"];
        /// How the image's CUDA compatibility libraries are found in legacy mode: `ldconfig`, through the loader's
        /// cache; `hook`, the same by a hook of nvidia-cdi-hook; `mount`, over the driver's own; `disabled`.
        "modes.legacy.cuda-compat-mode" (CUDA_COMPAT_MODE) legacy_cuda_compat_mode: String = "ldconfig", has its,
            of &["ldconfig", "mount", "hook", "disabled", ""];
    }

    /// `[nvidia-container-runtime-hook]`.
    "nvidia-container-runtime-hook" hook: Hook {
        /// The hook that legacy mode adds.
        "path" (HOOK_PATH) path: String = "nvidia-container-runtime-hook", has its;
        /// The hook works whatever the mode is.
        "skip-mode-detection" skip_mode_detection: bool = false, has its;
    }

    /// `[nvidia-ctk]`.
    "nvidia-ctk" ctk: Ctk {
        /// nvidia-ctk, beside which nvidia-cdi-hook may be found.
        "path" (CTK_PATH) path: String = "nvidia-ctk", has its;
    }
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Text,
    List,
}

impl Kind {
    /// Returns its name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Text => "a text",
            Self::List => "a list of strings",
        }
    }
}

/// A value as the table declares it and TOML has it.
trait Value: Sized {
    const KIND: Kind;
    /// The form of the default in the table.
    type Literal: ?Sized;
    fn new(default: &Self::Literal) -> Self;
    fn read(item: &Item) -> Option<Self>;
}

/// Implements [`Value`]: type, kind, the default's type; how the default and TOML's value become one.
macro_rules! value {
    ($type:ty, $kind:ident, $literal:ty, $new:expr, $read:expr) => {
        impl Value for $type {
            const KIND: Kind = Kind::$kind;
            type Literal = $literal;
            fn new(default: &$literal) -> Self {
                $new(default)
            }
            fn read(item: &Item) -> Option<Self> {
                $read(item)
            }
        }
    };
}

value!(bool, Bool, bool, |default: &bool| *default, Item::as_bool);
value!(String, Text, str, str::to_owned, text);
value!(Option<String>, Text, str, |_| None, |item| text(item)
    .map(Some));
value!(Vec<String>, List, [&'static str], texts, |item: &Item| {
    let values = item.as_array()?.iter();
    values
        .map(|value| value.as_str().map(str::to_owned))
        .collect()
});

fn text(item: &Item) -> Option<String> {
    item.as_str().map(str::to_owned)
}

fn texts(default: &[&str]) -> Vec<String> {
    default.iter().map(|&text| text.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        assert_eq!(nearest("disable-requires"), Some("disable-require"));
        assert_eq!(
            nearest("nvidia-container-cli.no-cgroup"),
            Some("nvidia-container-cli.no-cgroups")
        );
        assert_eq!(
            nearest("no-cgroups"),
            Some("nvidia-container-cli.no-cgroups")
        );
        assert_eq!(nearest("frobnicate"), None);
        assert_eq!(nearest("nvidia-container-cli.frob"), None);
        assert_eq!(nearest(&"x".repeat(1000)), None);
    }
}
