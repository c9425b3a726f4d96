//! Defines the generator's options: which devices and files it describes, and how.

use std::collections::BTreeSet;
use std::path::PathBuf;

use libnvc::host::query::QueryProgram;

use crate::channels::Channels;
use crate::hooks::{HookProgram, Hooks};

/// The kind of devices of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Detected: WSL, Tegra, or else NVML.
    Auto,
    /// A Jetson's file lists.
    Csv,
    Gdrcopy,
    /// GPUDirect Storage.
    Gds,
    /// IMEX channels.
    Imex,
    /// All of the driver's devices, for management.
    Management,
    /// The rights to configure and monitor MIG devices.
    MigCaps,
    /// InfiniBand.
    Mofed,
    /// GPUs and MIG devices.
    Nvml,
    /// Switches.
    Nvswitch,
    /// GPUs under WSL.
    Wsl,
}

impl Mode {
    /// Returns the mode that a word names, in any case.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word.to_ascii_lowercase().as_str() {
            "auto" => Self::Auto,
            "csv" => Self::Csv,
            "gdrcopy" => Self::Gdrcopy,
            "gds" => Self::Gds,
            "imex" => Self::Imex,
            "management" => Self::Management,
            "mig-caps" => Self::MigCaps,
            "mofed" => Self::Mofed,
            "nvml" => Self::Nvml,
            "nvswitch" => Self::Nvswitch,
            "wsl" => Self::Wsl,
            _ => return None,
        })
    }
}

/// The naming of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `0` and `1:0`.
    Index,
    /// `gpu0` and `mig1:0`.
    TypeIndex,
    /// `GPU-…` and `MIG-…`.
    Uuid,
}

impl Naming {
    /// Returns the naming that a word selects.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "index" => Self::Index,
            "type-index" => Self::TypeIndex,
            "uuid" => Self::Uuid,
            _ => return None,
        })
    }
}

/// How a specification names the driver's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// It lists them.
    Listed,
    /// A hook of the specification finds them when a container starts.
    AtStart,
    /// It does not name them: the caller only needs the devices, and another program adds the files.
    Omitted,
}

/// Optional features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Include libraries that images usually contain.
    pub explicit_driver_libraries: bool,
    /// Add separate specifications by memory coherence.
    pub coherent_annotations: bool,
    /// No supplementary groups.
    pub no_additional_gids: bool,
    /// No daemon sockets.
    pub no_ipc: bool,
    /// No 32-bit libraries.
    pub no_compat32: bool,
    /// The lists of a Jetson describe its only GPU, however many NVML lists.
    pub single_csv_device: bool,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Kind of devices.
    pub mode: Mode,
    pub driver_root: PathBuf,
    /// The root of the device nodes.
    pub dev_root: PathBuf,
    /// Naming of devices; each naming adds a device.
    pub naming: Vec<Naming>,
    /// Device ids; empty for all.
    pub ids: Vec<String>,
    /// The channels of mode imex.
    pub channels: Channels,
    /// Omit the device `all`.
    pub no_all: bool,
    /// Vendor of the devices.
    pub vendor: String,
    /// Class of the devices.
    pub class: String,
    /// Hooks and their program.
    pub hooks: Hooks,
    /// The ldconfig for update-ldcache.
    pub ldconfig: Option<String>,
    /// The driver's files.
    pub files: Files,
    /// Look for the GPUs' nodes for displays.
    pub displays: bool,
    /// On a machine without GPUs, `all` requests none.
    pub all_may_be_none: bool,
    /// Search configuration files only here.
    pub config_search: Vec<PathBuf>,
    /// Search libraries only here.
    pub library_search: Vec<PathBuf>,
    /// A Jetson's file lists.
    pub csv_files: Vec<PathBuf>,
    /// Links to omit from those lists.
    pub csv_ignore: Vec<String>,
    /// The directory of images' CUDA compatibility libraries on an Orin; empty for the default.
    pub csv_compat_root: String,
    /// Add the nodes' groups.
    pub gids: bool,
    /// Optional features.
    pub flags: Flags,
    /// The program that asks NVML.
    pub query: QueryProgram,
    /// The caller's PATH.
    pub path: String,
    /// The caller's XDG_DATA_DIRS.
    pub data_dirs: String,
}

impl Options {
    /// Describes all devices of this machine, as `nvidia-ctk cdi generate` does by default.
    pub fn new(mode: Mode, hook_program: String) -> Self {
        Self {
            mode,
            driver_root: "/".into(),
            dev_root: "/".into(),
            naming: vec![Naming::Index, Naming::Uuid],
            ids: Vec::new(),
            channels: Channels::All,
            no_all: false,
            vendor: "nvidia.com".into(),
            class: "gpu".into(),
            hooks: Hooks {
                program: HookProgram { path: hook_program },
                disabled: BTreeSet::new(),
                enabled: BTreeSet::new(),
                merged: false,
                is_ours: false,
            },
            ldconfig: None,
            files: Files::Listed,
            displays: true,
            all_may_be_none: false,
            config_search: Vec::new(),
            library_search: Vec::new(),
            csv_files: Vec::new(),
            csv_ignore: Vec::new(),
            csv_compat_root: String::new(),
            gids: false,
            flags: Flags::default(),
            query: QueryProgram::ThisProcess,
            path: String::new(),
            data_dirs: String::new(),
        }
    }

    /// Returns whether one merged hook replaces the separate ones; only that hook can find the driver's files.
    pub fn has_one_hook(&self) -> bool {
        self.hooks.merged || self.files == Files::AtStart
    }
}
