//! Makes CDI specifications of this machine.
//!
//! [`Options`] say what is wanted; a [`Tree`](tree) finds the driver's files; one module for each sort of thing makes edits
//! of it; [`simplify`] puts them together. Nodes are named by path and never by number, since majors are assigned anew at
//! each boot; groups only on request, since they need a later version of the format than many engines know.

mod devices;
mod driver;
mod files;
mod graphics;
mod hooks;
mod ids;
mod libraries;
mod modes;
mod simplify;
mod tree;

use std::path::PathBuf;

use libnvc::{Error, ErrorKind, Result};

use crate::cdi::{Device, Edits, Spec, version};
pub use hooks::{HookProgram, Hooks};

/// What sort of devices a specification is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What the machine is: WSL, Tegra, or else NVML's.
    Auto,
    /// The lists of a Jetson.
    Csv,
    /// GDRCopy.
    Gdrcopy,
    /// GPUDirect Storage.
    Gds,
    /// IMEX channels.
    Imex,
    /// All of the driver's devices, for who manages them.
    Management,
    /// InfiniBand.
    Mofed,
    /// GPUs and MIG devices.
    Nvml,
    /// Switches.
    Nvswitch,
    /// Windows' GPUs.
    Wsl,
}

impl Mode {
    /// The mode that a word names, in any case.
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

/// How devices are named.
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
    /// The way that a word names.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "index" => Self::Index,
            "type-index" => Self::TypeIndex,
            "uuid" => Self::Uuid,
            _ => return None,
        })
    }
}

/// What is left out or put in on request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Libraries that images usually bring along, too.
    pub explicit_driver_libraries: bool,
    /// Further specifications by coherence of memory.
    pub coherent_annotations: bool,
    /// No groups for processes.
    pub no_additional_gids: bool,
    /// No sockets of daemons.
    pub no_ipc: bool,
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// What sort of devices.
    pub mode: Mode,
    /// Where the driver's files are.
    pub driver_root: PathBuf,
    /// Where the device nodes are.
    pub dev_root: PathBuf,
    /// How devices are named; each way gives a device of its own.
    pub naming: Vec<Naming>,
    /// Which devices; empty for all.
    pub ids: Vec<String>,
    /// Leave out the device `all`.
    pub no_all: bool,
    /// Vendor of the devices.
    pub vendor: String,
    /// Class of the devices.
    pub class: String,
    /// Which hooks, and the program that they are.
    pub hooks: Hooks,
    /// The ldconfig for update-ldcache.
    pub ldconfig: Option<String>,
    /// Look for configuration files here only.
    pub config_search: Vec<PathBuf>,
    /// Look for libraries here only.
    pub library_search: Vec<PathBuf>,
    /// Lists of a Jetson.
    pub csv_files: Vec<PathBuf>,
    /// Links of those lists to be left out.
    pub csv_ignore: Vec<String>,
    /// Record groups of nodes.
    pub gids: bool,
    /// What is left out or put in.
    pub flags: Flags,
    /// The caller's PATH.
    pub path: String,
    /// The caller's XDG_DATA_DIRS.
    pub data_dirs: String,
}

/// Specifications that were made.
#[derive(Debug)]
pub struct Made {
    /// The one that was asked for.
    pub spec: Spec,
    /// What goes on past, in the order in which it was found.
    pub warnings: Vec<String>,
}

/// What a mode finds.
#[derive(Debug, Default)]
struct Found {
    devices: Vec<Device>,
    common: Edits,
    warnings: Vec<String>,
}

/// Makes the specification that is wanted.
///
/// # Errors
/// The driver does not answer, something of a device is missing ([`ErrorKind::NotFound`] if there is no usable device at
/// all), or an option does not fit the machine.
pub fn generate(options: &Options) -> Result<Made> {
    let mut found = modes::find(options)?;
    found.common.env.push("NVIDIA_VISIBLE_DEVICES=void".into());
    let kind = format!("{}/{}", options.vendor, options.class);
    let mut spec = Spec {
        kind,
        devices: found.devices,
        container_edits: found.common,
        ..Spec::default()
    };
    let none_chosen = options.ids.iter().any(|id| id == "none");
    simplify::simplify(&mut spec, !options.no_all && !none_chosen);
    if !options.gids {
        simplify::without_groups(&mut spec);
    }
    if options.hooks.merged {
        simplify::merge_hooks(&mut spec, &options.hooks);
    }
    if spec
        .devices
        .iter()
        .all(|device| device.name == "all" && device.container_edits.is_empty())
    {
        let error = Error::new(
            ErrorKind::NotFound,
            "there is no device that a container could use",
        );
        return Err(error.hint("nvidia-smi -L lists the GPUs; one in MIG mode needs MIG devices"));
    }
    if let Some(empty) = spec
        .devices
        .iter()
        .find(|device| device.container_edits.is_empty())
    {
        let missing = found.warnings.join("; ");
        let text = format!(
            "device {:?} has nothing that a container could use: {missing}",
            empty.name
        );
        let error = Error::new(ErrorKind::Malformed, text);
        return Err(error.hint("nvidia-ctk system create-device-nodes --control-devices, or nvidia-modprobe, makes nodes"));
    }
    spec.cdi_version = version::minimum(&spec).0.into();
    crate::cdi::validate::spec(&spec).map_err(|text| {
        Error::new(
            ErrorKind::Malformed,
            format!("the specification is not valid: {text}"),
        )
    })?;
    Ok(Made {
        spec,
        warnings: found.warnings,
    })
}
