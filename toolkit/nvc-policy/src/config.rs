//! Reads config.toml, the administrator's configuration of the toolkit.
//!
//! The hook, the runtime and `nvidia-ctk` all read it through this module, so a key has the same meaning in each of
//! them. [`lookup`] finds the file, [`schema`] lists every key, [`parse`] converts text to a [`Config`], and
//! [`ldconfig`] returns the configured ldconfig.

pub mod ldconfig;
pub mod lookup;
pub mod nearest;
pub mod schema;

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

pub use parse::parse;

/// The key of the runtime's mode.
pub const MODE: &str = "nvidia-container-runtime.mode";

/// The content of config.toml, with defaults for missing keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Drops all requirement checks.
    pub disable_require: bool,
    /// Names of variables that narrow `NVIDIA_VISIBLE_DEVICES`, separated by commas.
    pub swarm_resource: String,
    /// Honours requests in the environment of unprivileged containers.
    pub accept_envvar_unprivileged: bool,
    /// Honours requests made by mounts.
    pub accept_volume_mounts: bool,
    /// Honours requests for GDS, MOFED, GDRCopy and NVSwitch in the environment of unprivileged containers whose GPUs
    /// came by mounts.
    pub accept_features_unprivileged: bool,
    /// Lets annotations decide alone about CDI devices, in every container.
    pub accept_annotations: bool,
    /// Kinds of CDI devices that the environment may name, besides NVIDIA's.
    pub accept_cdi_kinds: Vec<String>,
    /// Driver capabilities that containers may have.
    pub supported_driver_capabilities: String,
    /// `[nvidia-container-cli]`.
    pub cli: Cli,
    /// `nvidia-ctk.path`.
    pub ctk_path: String,
    /// `[nvidia-container-runtime]`.
    pub runtime: Runtime,
    /// `[nvidia-container-runtime-hook]`.
    pub hook: Hook,
    /// `[features]`.
    pub features: Features,
    /// The keys in the file, with their lines.
    pub lines: Vec<(String, usize)>,
    /// The file that was read; None if all values are defaults.
    pub file: Option<PathBuf>,
    /// The program's name, if it determines the mode.
    pub forced_by: Option<String>,
}

/// `[nvidia-container-cli]`: options of nvidia-container-cli.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cli {
    pub root: String,
    pub path: String,
    pub environment: Vec<String>,
    pub debug: String,
    pub ldcache: String,
    pub load_kmods: bool,
    pub no_pivot: bool,
    pub no_cgroups: bool,
    /// None: the default of the distribution.
    pub user: Option<String>,
    /// None: the default for the host.
    pub ldconfig: Option<String>,
}

/// `[nvidia-container-runtime]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub debug: String,
    pub log_level: String,
    pub runtimes: Vec<String>,
    pub mode: String,
    pub csv_mount_spec_path: String,
    pub csv_compat_container_root: String,
    pub cdi_default_kind: String,
    pub cdi_annotation_prefixes: Vec<String>,
    pub cdi_spec_dirs: Vec<String>,
    pub jit_feature_flags: Vec<String>,
    pub jit_disable_hooks: Vec<String>,
    /// Whether jit-cdi omits driver files of capabilities that the container does not request: `ignore` or `honour`.
    pub jit_driver_capabilities: String,
    /// How jit-cdi treats an unmet `NVIDIA_REQUIRE_*`: `warn`, `honour` or `ignore`.
    pub jit_requirements: String,
    pub legacy_cuda_compat_mode: String,
}

/// `[nvidia-container-runtime-hook]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub path: String,
    pub skip_mode_detection: bool,
}

/// `[features]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub allow_cuda_compat_libs_from_container: bool,
    pub allow_ldconfig_from_container: bool,
    pub allow_unknown_oci_spec_fields: bool,
    pub disable_cuda_compat_lib_hook: bool,
    pub disable_imex_channel_creation: bool,
    pub ignore_imex_channel_requests: bool,
    pub no_additional_gids_for_device_nodes: bool,
}

impl Default for Config {
    fn default() -> Self {
        let texts = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        Self {
            disable_require: false,
            swarm_resource: String::new(),
            accept_envvar_unprivileged: true,
            accept_volume_mounts: false,
            accept_features_unprivileged: false,
            accept_annotations: false,
            accept_cdi_kinds: Vec::new(),
            supported_driver_capabilities: "compat32,compute,display,graphics,ngx,utility,video"
                .into(),
            cli: Cli {
                root: String::new(),
                path: String::new(),
                environment: Vec::new(),
                debug: String::new(),
                ldcache: String::new(),
                load_kmods: true,
                no_pivot: false,
                no_cgroups: false,
                user: None,
                ldconfig: None,
            },
            ctk_path: "nvidia-ctk".into(),
            runtime: Runtime {
                debug: "/dev/null".into(),
                log_level: "info".into(),
                runtimes: texts(&["runc", "crun"]),
                mode: "auto".into(),
                csv_mount_spec_path: "/etc/nvidia-container-runtime/host-files-for-container.d"
                    .into(),
                csv_compat_container_root: String::new(),
                cdi_default_kind: "nvidia.com/gpu".into(),
                cdi_annotation_prefixes: texts(&["cdi.k8s.io/"]),
                cdi_spec_dirs: texts(&["/etc/cdi", "/var/run/cdi"]),
                jit_feature_flags: Vec::new(),
                jit_disable_hooks: Vec::new(),
                jit_driver_capabilities: "ignore".into(),
                jit_requirements: "warn".into(),
                legacy_cuda_compat_mode: "ldconfig".into(),
            },
            hook: Hook {
                path: "nvidia-container-runtime-hook".into(),
                skip_mode_detection: false,
            },
            features: Features {
                allow_cuda_compat_libs_from_container: false,
                allow_ldconfig_from_container: false,
                allow_unknown_oci_spec_fields: false,
                disable_cuda_compat_lib_hook: false,
                disable_imex_channel_creation: false,
                ignore_imex_channel_requests: false,
                no_additional_gids_for_device_nodes: false,
            },
            lines: Vec::new(),
            file: None,
            forced_by: None,
        }
    }
}

impl Config {
    /// Returns the origin of a key's value: `FILE:LINE`, or `default`.
    pub fn origin(&self, key: &str) -> String {
        let line = self.lines.iter().find(|(name, _)| name == key);
        match (line, &self.file) {
            (Some((_, line)), Some(file)) => format!("{}:{line}", file.display()),
            (Some((_, line)), None) => format!("line {line}"),
            (None, _) => "default".into(),
        }
    }

    /// Overrides the file's mode; `by` is the reason.
    pub fn force_mode(&mut self, mode: &str, by: &str) {
        mode.clone_into(&mut self.runtime.mode);
        self.forced_by = Some(by.to_owned());
    }

    /// Returns the origin of the mode: the program's name, or a line of the file.
    pub fn mode_origin(&self) -> String {
        match &self.forced_by {
            Some(name) => format!("program name {name}"),
            None => self.origin(MODE),
        }
    }

    /// Returns the user that nvidia-container-cli changes to; on SUSE the group video owns the device nodes.
    pub fn user(&self, os_release: &str) -> String {
        match &self.cli.user {
            Some(user) => user.clone(),
            None if is_suse(os_release) => "root:video".into(),
            None => String::new(),
        }
    }
}

/// Returns true for an os-release file of SUSE or a derivative.
fn is_suse(os_release: &str) -> bool {
    let like = os_release
        .lines()
        .find_map(|line| line.trim().strip_prefix("ID_LIKE="));
    like.is_some_and(|value| {
        let words = value.trim_matches(['"', '\'']);
        words
            .split_ascii_whitespace()
            .any(|word| word == "suse" || word == "opensuse")
    })
}

/// A configuration, with warnings about the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// One line for each unknown key.
    pub warnings: Vec<String>,
}

/// The reason why there is no configuration.
#[derive(Debug)]
pub enum Error {
    /// The named file does not exist.
    Missing(PathBuf),
    /// The file cannot be opened or read.
    Read {
        /// `open` or `read`.
        operation: &'static str,
        file: PathBuf,
        cause: std::io::Error,
    },
    /// The text is not TOML.
    Syntax(String),
    /// A value has the wrong type.
    Type(String),
    /// A value is not allowed.
    Value(String),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(_) => out.write_str("file does not exist"),
            Self::Read {
                operation,
                file,
                cause,
            } => write!(
                out,
                "failed to load specified config file: {operation} {}: {}",
                file.display(),
                nvc_hostfile::cause::text(cause)
            ),
            Self::Syntax(text) => write!(out, "failed to load specified config file: {text}"),
            Self::Type(text) => write!(out, "failed to unmarshal config: {text}"),
            Self::Value(text) => write!(out, "{text}: invalid config value"),
        }
    }
}

impl Error {
    /// Returns true if the file itself is at fault, rather than a value in it.
    pub fn is_of_the_file(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Read { .. } | Self::Syntax(_))
    }
}
