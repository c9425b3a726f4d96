//! Defines the generator's options: what it finds, how devices are named, how intents become edits.

use std::path::PathBuf;

use libnvc::host::query::QueryProgram;

use crate::channels::Channels;
use crate::hooks::Hooks;

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

/// What to find on this machine.
#[derive(Clone, Debug)]
pub struct Find {
    /// Kind of devices.
    pub mode: Mode,
    pub driver_root: PathBuf,
    /// The root of the device nodes.
    pub dev_root: PathBuf,
    /// Device ids; empty for all.
    pub ids: Vec<String>,
    /// The channels of mode imex.
    pub channels: Channels,
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
    /// Include libraries that images usually contain.
    pub explicit_driver_libraries: bool,
    /// No daemon sockets.
    pub no_ipc: bool,
    /// No 32-bit libraries.
    pub no_compat32: bool,
    /// Separate devices by memory coherence, too.
    pub coherence: bool,
    /// What to find on a Jetson.
    pub csv: Csv,
    /// The program that asks NVML.
    pub query: QueryProgram,
    /// The caller's PATH.
    pub path: String,
    /// The caller's XDG_DATA_DIRS.
    pub data_dirs: String,
}

/// What to find on a Jetson.
#[derive(Clone, Debug, Default)]
pub struct Csv {
    /// Its file lists.
    pub files: Vec<PathBuf>,
    /// Links to omit from those lists.
    pub ignore: Vec<String>,
    /// The directory of images' CUDA compatibility libraries on an Orin; empty for the default.
    pub compat_root: String,
    /// Leave such libraries alone.
    pub no_compat: bool,
    /// The lists describe the only GPU, however many NVML lists.
    pub single_device: bool,
}

/// How a specification names its devices.
#[derive(Clone, Debug)]
pub struct Names {
    /// Each naming adds a device.
    pub naming: Vec<Naming>,
    /// Omit the device `all`.
    pub no_all: bool,
    /// Vendor of the devices.
    pub vendor: String,
    /// Class of the devices.
    pub class: String,
}

/// How intents become edits.
#[derive(Clone, Debug)]
pub struct Rendering {
    /// Hooks and their program.
    pub hooks: Hooks,
    /// The host's ldconfig that updates the loader's cache.
    pub ldconfig: Option<String>,
    /// Write the nodes' groups.
    pub gids: bool,
    /// Add the groups of nodes that not every user may open.
    pub additional_gids: bool,
}

/// Options for a specification.
#[derive(Clone, Debug)]
pub struct Options {
    pub find: Find,
    pub names: Names,
    pub rendering: Rendering,
}

impl Find {
    /// Finds all devices of this machine, as `nvidia-ctk cdi generate` does by default.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            driver_root: "/".into(),
            dev_root: "/".into(),
            ids: Vec::new(),
            channels: Channels::All,
            files: Files::Listed,
            displays: true,
            all_may_be_none: false,
            config_search: Vec::new(),
            library_search: Vec::new(),
            explicit_driver_libraries: false,
            no_ipc: false,
            no_compat32: false,
            coherence: false,
            csv: Csv::default(),
            query: QueryProgram::ThisProcess,
            path: String::new(),
            data_dirs: String::new(),
        }
    }
}

impl Options {
    /// Returns whether one hook does the work of all; only that hook can find the driver's files.
    pub fn has_one_hook(&self) -> bool {
        self.rendering.hooks.merged || self.find.files == Files::AtStart
    }
}
