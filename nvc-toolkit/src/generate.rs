//! Makes CDI specifications of this machine.
//!
//! [`Options`] say what is wanted. libnvc finds the driver's files and devices, plans and writes edits; here devices are
//! chosen and named, the hook program and its options put in, and what is there twice taken out ([`simplify`]). Nodes are named by path and never by number, since majors are assigned anew at
//! each boot; groups only on request, since they need a later version of the format than many engines know.

mod devices;
mod displays;
mod driver;
mod hooks;
mod ids;
mod modes;
mod simplify;

use std::path::PathBuf;

use libnvc::{Error, ErrorKind, Result};

use crate::cdi::{Device, Edits, Spec, version};
pub use displays::displays;
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
    /// Further ones, of some of the devices: what is added to the class and to the file's name, and the specification.
    pub parts: Vec<(&'static str, Spec)>,
    /// What goes on past, in the order in which it was found.
    pub warnings: Vec<String>,
}

/// What a mode finds.
#[derive(Debug, Default)]
struct Found {
    devices: Vec<Device>,
    common: Edits,
    /// Some of the devices again, by the name of the part.
    parts: Vec<(&'static str, Vec<Device>)>,
    warnings: Vec<String>,
}

/// Makes the specification that is wanted.
///
/// # Errors
/// The driver does not answer, something of a device is missing ([`ErrorKind::NotFound`] if there is no usable device at
/// all), or an option does not fit the machine.
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
    })
}

/// A checked specification of some devices.
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
    if options.hooks.merged {
        simplify::merge_hooks(&mut spec, &options.hooks);
    }
    let is_nothing = |device: &Device| device.name == "all" && device.container_edits.is_empty();
    if spec.devices.iter().all(is_nothing) {
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
        let (name, missing) = (&empty.name, found.warnings.join("; "));
        let text = format!("device {name:?} has nothing that a container could use: {missing}");
        let hint = "nvidia-ctk system create-device-nodes --control-devices, or nvidia-modprobe, makes nodes";
        return Err(Error::new(ErrorKind::Malformed, text).hint(hint));
    }
    spec.cdi_version = version::minimum(&spec).0.into();
    crate::cdi::validate::spec(&spec).map_err(|text| {
        Error::new(
            ErrorKind::Malformed,
            format!("the specification is not valid: {text}"),
        )
    })?;
    Ok(spec)
}
