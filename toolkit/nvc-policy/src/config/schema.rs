//! Lists every key of config.toml with its type.
//!
//! The parser accepts a value only through a key of this table, and `nvidia-ctk config` sets values by it.

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A string.
    Text,
    /// A list of texts.
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

/// One key: its dotted name and the type of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The full name, including tables.
    pub name: &'static str,
    pub kind: Kind,
    /// The values that a text can have; empty if it can have any.
    pub words: &'static [&'static str],
}

const fn bool(name: &'static str) -> Key {
    let (kind, words) = (Kind::Bool, &[]);
    Key { name, kind, words }
}

const fn text(name: &'static str) -> Key {
    let (kind, words) = (Kind::Text, &[]);
    Key { name, kind, words }
}

const fn list(name: &'static str) -> Key {
    let (kind, words) = (Kind::List, &[]);
    Key { name, kind, words }
}

const fn one_of(name: &'static str, words: &'static [&'static str]) -> Key {
    let kind = Kind::Text;
    Key { name, kind, words }
}

/// The values of `nvidia-container-runtime.mode`.
pub const MODES: &[&str] = &["auto", "cdi", "csv", "jit-cdi", "legacy"];

/// Those of `nvidia-container-runtime.log-level`.
const LEVELS: &[&str] = &[
    "trace", "debug", "info", "warning", "warn", "error", "fatal", "panic",
];

/// Every key there is.
pub const KEYS: &[Key] = &[
    bool("disable-require"),
    text("swarm-resource"),
    bool("accept-nvidia-visible-devices-envvar-when-unprivileged"),
    bool("accept-nvidia-visible-devices-as-volume-mounts"),
    bool("accept-nvidia-features-when-unprivileged"),
    bool("accept-annotations"),
    list("accept-cdi-kinds"),
    text("supported-driver-capabilities"),
    text("nvidia-container-cli.root"),
    text("nvidia-container-cli.path"),
    list("nvidia-container-cli.environment"),
    text("nvidia-container-cli.debug"),
    text("nvidia-container-cli.ldcache"),
    bool("nvidia-container-cli.load-kmods"),
    bool("nvidia-container-cli.no-pivot"),
    bool("nvidia-container-cli.no-cgroups"),
    text("nvidia-container-cli.user"),
    text("nvidia-container-cli.ldconfig"),
    text("nvidia-ctk.path"),
    text("nvidia-container-runtime.debug"),
    one_of("nvidia-container-runtime.log-level", LEVELS),
    list("nvidia-container-runtime.runtimes"),
    one_of("nvidia-container-runtime.mode", MODES),
    text("nvidia-container-runtime.modes.csv.mount-spec-path"),
    text("nvidia-container-runtime.modes.csv.compat-container-root"),
    text("nvidia-container-runtime.modes.cdi.default-kind"),
    list("nvidia-container-runtime.modes.cdi.annotation-prefixes"),
    list("nvidia-container-runtime.modes.cdi.spec-dirs"),
    list("nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags"),
    list("nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks"),
    one_of(
        "nvidia-container-runtime.modes.jit-cdi.driver-capabilities",
        &["ignore", "honour"],
    ),
    one_of(
        "nvidia-container-runtime.modes.jit-cdi.requirements",
        &["warn", "honour", "ignore"],
    ),
    one_of(
        "nvidia-container-runtime.modes.legacy.cuda-compat-mode",
        &["ldconfig", "mount", "hook", "disabled", ""],
    ),
    text("nvidia-container-runtime-hook.path"),
    bool("nvidia-container-runtime-hook.skip-mode-detection"),
    bool("features.allow-cuda-compat-libs-from-container"),
    bool("features.allow-ldconfig-from-container"),
    bool("features.allow-unknown-oci-spec-fields"),
    bool("features.disable-cuda-compat-lib-hook"),
    bool("features.disable-imex-channel-creation"),
    bool("features.ignore-imex-channel-requests"),
    bool("features.no-additional-gids-for-device-nodes"),
];

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
