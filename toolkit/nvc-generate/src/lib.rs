//! Generates CDI specifications of this machine.
//!
//! [`Options`] describe the specification. libnvc finds the driver's files and devices, plans and renders edits; this
//! module selects and names devices, sets the hook program and its options, and removes duplicates ([`simplify`]).
//! Nodes are identified by path and never by number, because major numbers can change at each boot; groups are added
//! only on request, because they need a newer format version than many engines support.
#![forbid(unsafe_code)]

pub mod csv;
pub mod driver_files;
pub mod gated;
pub mod hook_program;
pub mod nodes;

mod devices;
mod displays;
mod driver;
mod hooks;
mod ids;
mod modes;
mod simplify;
mod uuid;

use std::collections::BTreeSet;
use std::path::PathBuf;

use libnvc::host::query::QueryProgram;
use libnvc::host::{DriverVersions, Gpu};
use libnvc::{Error, ErrorKind, Result};

pub use displays::{addresses_of_module, displays};
pub use hooks::{HookProgram, Hooks};
use nvc_cdi::{Device, Edits, Spec, version};

/// The kind of devices of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Detected: WSL, Tegra, or else NVML.
    Auto,
    /// A Jetson's file lists.
    Csv,
    /// GDRCopy.
    Gdrcopy,
    /// GPUDirect Storage.
    Gds,
    /// IMEX channels.
    Imex,
    /// All of the driver's devices, for management.
    Management,
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
    /// The lists of a Jetson describe its only GPU, however many NVML lists.
    pub single_csv_device: bool,
}

/// Options of the generator.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kind of devices.
    pub mode: Mode,
    /// The driver root.
    pub driver_root: PathBuf,
    /// The root of the device nodes.
    pub dev_root: PathBuf,
    /// Naming of devices; each naming adds a device.
    pub naming: Vec<Naming>,
    /// Device ids; empty for all.
    pub ids: Vec<String>,
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
            no_all: false,
            vendor: "nvidia.com".into(),
            class: "gpu".into(),
            hooks: Hooks {
                program: HookProgram { path: hook_program },
                disabled: BTreeSet::new(),
                enabled: BTreeSet::new(),
                merged: false,
            },
            ldconfig: None,
            files: Files::Listed,
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

/// Generated specifications.
#[derive(Debug)]
pub struct Made {
    /// The main specification.
    pub spec: Spec,
    /// Additional ones for some of the devices: the suffix of the class and of the file's name, and the specification.
    pub parts: Vec<(&'static str, Spec)>,
    /// Warnings in order of occurrence.
    pub warnings: Vec<String>,
    /// NVML's answer, if it was queried.
    pub driver: Option<Driver>,
}

/// NVML's answer about the driver.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Its versions.
    pub versions: DriverVersions,
    /// All GPUs, including those that were not requested.
    pub gpus: Vec<Gpu>,
}

/// Findings of a mode.
#[derive(Debug, Default)]
struct Found {
    devices: Vec<Device>,
    common: Edits,
    /// Subsets of the devices, by part name.
    parts: Vec<(&'static str, Vec<Device>)>,
    warnings: Vec<String>,
    driver: Option<Driver>,
}

/// Generates the specification.
///
/// # Errors
/// The driver does not respond, part of a device is missing ([`ErrorKind::NotFound`] if there is no usable device at
/// all), or an option is unsuitable for the machine.
pub fn generate(options: &Options) -> Result<Made> {
    let found = modes::find(options)?;
    let make = |class: &str, devices: Vec<Device>| spec(options, class, devices, &found);
    let mut parts = Vec::new();
    for (part, devices) in &found.parts {
        let class = format!("{}.{part}", options.class);
        parts.push((*part, make(&class, devices.clone())?));
    }
    let spec = make(&options.class, found.devices.clone())?;
    Ok(Made {
        spec,
        parts,
        warnings: found.warnings,
        driver: found.driver,
    })
}

/// Builds and validates a specification of some devices.
fn spec(options: &Options, class: &str, devices: Vec<Device>, found: &Found) -> Result<Spec> {
    let mut spec = Spec {
        kind: format!("{}/{class}", options.vendor),
        devices,
        container_edits: found.common.clone(),
        ..Spec::default()
    };
    spec.container_edits
        .env
        .push("NVIDIA_VISIBLE_DEVICES=void".into());
    let none_chosen = options.ids.iter().any(|id| id == "none");
    simplify::simplify(&mut spec, !options.no_all && !none_chosen);
    if !options.gids {
        simplify::without_groups(&mut spec);
    }
    if options.has_one_hook() {
        simplify::merge_hooks(&mut spec, &options.hooks);
    }
    let is_nothing = |device: &Device| device.name == "all" && device.container_edits.is_empty();
    if spec.devices.iter().all(is_nothing) {
        let mut error = Error::new(
            ErrorKind::NotFound,
            "there is no device that a container could use",
        );
        if !found.warnings.is_empty() {
            error = error.with_cause(found.warnings.join("; "));
        }
        return Err(error.hint("nvidia-smi -L lists the GPUs; one in MIG mode needs MIG devices"));
    }
    if let Some(empty) = spec
        .devices
        .iter()
        .find(|device| device.container_edits.is_empty())
    {
        let (name, missing) = (&empty.name, found.warnings.join("; "));
        let text = format!("device \"{name}\" has nothing that a container could use: {missing}");
        let hint = "nvidia-ctk system create-device-nodes --control-devices, or nvidia-modprobe, makes nodes";
        return Err(Error::new(ErrorKind::Malformed, text).hint(hint));
    }
    spec.cdi_version = version::minimum(&spec).0.into();
    nvc_cdi::validate::spec(&spec).map_err(|text| {
        Error::new(
            ErrorKind::Malformed,
            format!("the specification is not valid: {text}"),
        )
    })?;
    Ok(spec)
}

#[cfg(test)]
mod tests;
