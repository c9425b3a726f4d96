//! Converts NVML's answers to GPUs, after validating them.
//!
//! These strings end up in paths, in comparisons with user input, and on terminals.

use std::fmt::Write;
use std::path::Path;

use nix::errno::Errno;
use serde::Serialize;

use super::query::{
    Fault, GpuAnswer, GpuFault, GpuReport, MigReport, Versions, not_served, numbered,
};
use super::{
    DeviceNode, DriverRoot, DriverVersions, Gpu, MigDevice, NVIDIA_MAJOR, integrated, nodes,
};
use crate::error::{Error, ErrorKind, Result};
use crate::hint::{Hint, Setting};
use crate::path::HostPath;

/// Longest version, UUID or name that fits NVML's buffers.
const MAX_TEXT_LEN: usize = 96;
/// The highest known number of a brand.
const BRANDS: u32 = 16;
/// Number of minor numbers in Linux.
pub(super) const MINORS: u32 = 1 << 20;

/// The GPUs of the host.
#[derive(Clone, Debug, Default)]
pub struct DeviceInfo {
    /// The working GPUs, in NVML's order; `index` counts the failed ones too.
    pub gpus: Vec<Gpu>,
    /// GPUs that NVML lists but fails on. They matter only to a request that names one.
    pub failed: Vec<FailedGpu>,
    /// Indices of GPUs in persistence mode.
    pub persistent: Vec<u32>,
    /// Indices of GPUs in MIG mode, including those without MIG devices.
    pub divided: Vec<u32>,
    /// Indices of GPUs with a known addressing mode; true if they address host memory coherently.
    pub coherent: Vec<(u32, bool)>,
}

/// A GPU that is skipped because NVML fails on it.
#[derive(Clone, Debug, Serialize)]
pub struct FailedGpu {
    /// Position in NVML's order.
    pub index: u32,
    /// `GPU-…`, if known.
    pub uuid: Option<String>,
    /// PCI address, if known.
    pub busid: Option<String>,
    /// The reason for skipping it.
    #[serde(serialize_with = "as_text")]
    pub error: Error,
}

fn as_text<S: serde::Serializer>(error: &Error, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&error.message())
}

impl DeviceInfo {
    /// Returns the GPUs that NVML reported, and warns of each skipped one.
    ///
    /// # Errors
    /// The first GPU's error, if none works.
    pub(crate) fn from_reports(reports: &[GpuAnswer]) -> Result<Self> {
        let mut info = Self::default();
        for (index, report) in numbered(reports) {
            if let Ok(report) = report {
                info.persistent.extend(report.persistent.then_some(index));
                info.divided.extend(report.mig_enabled.then_some(index));
                info.coherent.extend(report.coherent.map(|is| (index, is)));
            }
            let (uuid, pci, result) = match report {
                Ok(report) => (Some(&report.uuid), Some(report.pci), gpu(index, report)),
                Err(failed) => (failed.uuid.as_ref(), failed.pci, Err(failure(failed))),
            };
            match result {
                Ok(gpu) => info.gpus.push(gpu),
                Err(error) => info.failed.push(FailedGpu {
                    index,
                    uuid: uuid.filter(|uuid| is_uuid(uuid)).cloned(),
                    busid: pci.map(|pci| pci.to_string()),
                    error,
                }),
            }
        }
        if info.gpus.is_empty()
            && let Some(first) = info.failed.first()
        {
            return Err(first.error.clone());
        }
        for failed in &info.failed {
            log::warn!("skipping {failed}: {}", failed.error.message());
        }
        Ok(info)
    }
}

/// Returns NVML's failure; for the GPU of a Tegra SoC, with the way to use it.
fn failure(failed: &GpuFault) -> Error {
    let error = error(&failed.fault, ErrorKind::DriverFailed);
    if failed.pci.is_none() && integrated::is_integrated(failed) == Some(true) {
        error.hint("containers get this GPU by the file lists of a Jetson: mode csv")
    } else {
        error
    }
}

impl std::fmt::Display for FailedGpu {
    /// Formats as `GPU 2 (GPU-…, 00000000:3b:00.0)`, as far as known.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {}", self.index)?;
        let known: Vec<&str> = [&self.uuid, &self.busid]
            .into_iter()
            .filter_map(|text| text.as_deref())
            .collect();
        if !known.is_empty() {
            write!(f, " ({})", known.join(", "))?;
        }
        Ok(())
    }
}

/// Validates the driver's versions.
pub(crate) fn versions(versions: &Versions) -> Result<DriverVersions> {
    let failed = |fault: &Fault| error(fault, ErrorKind::DriverFailed);
    let driver = versions.driver.as_ref().map_err(failed)?;
    let cuda = *versions.cuda.as_ref().map_err(failed)?;
    // The version goes into paths and is compared with suffixes of file names.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+');
    if driver.is_empty()
        || driver.len() > MAX_TEXT_LEN
        || driver.starts_with('.')
        || !driver.chars().all(fits)
    {
        return Err(malformed("driver version", driver));
    }
    Ok(DriverVersions {
        driver: driver.clone(),
        cuda: cuda_version(cuda)?,
    })
}

/// Converts NVML's report of one GPU.
pub(super) fn gpu(index: u32, report: &GpuReport) -> Result<Gpu> {
    if let Some(minor) = report.minor.filter(|minor| *minor >= MINORS) {
        return Err(malformed("minor number", &minor.to_string()));
    }
    let capabilities = report
        .minor
        .map(|minor| HostPath::new(format!("/proc/driver/nvidia/capabilities/gpu{minor}")));
    let mig_devices = report.mig_devices.iter();
    let mig_devices = match &capabilities {
        Some(directory) => mig_devices
            .map(|report| mig_device(directory, report))
            .collect::<Result<_>>()?,
        None => Vec::new(),
    };
    Ok(Gpu {
        index,
        model: product_name(&report.name),
        uuid: checked_uuid(&report.uuid)?,
        busid: report.pci.to_string(),
        arch: arch(report.compute_capability)?,
        brand: brand(report.brand).into(),
        minor: report.minor.unwrap_or(0),
        node: report
            .minor
            .map(|minor| DeviceNode::new(format!("/dev/nvidia{minor}"), NVIDIA_MAJOR, minor)),
        drm_nodes: Vec::new(),
        drm_links: Vec::new(),
        // Filled in by the session, which has the driver root open.
        proc_dir: None,
        mig_capable: report.mig_capable,
        mig_caps_path: capabilities,
        mig_devices,
    })
}

/// Formats a compute capability.
pub(super) fn arch((major, minor): (i32, i32)) -> Result<String> {
    let text = format!("{major}.{minor}");
    if major >= 0 && minor >= 0 {
        Ok(text)
    } else {
        Err(malformed("compute capability", &text))
    }
}

/// Formats a CUDA version in NVML's form: 12020 is 12.2.
pub(super) fn cuda_version(number: i32) -> Result<String> {
    let cuda = u32::try_from(number).map_err(|_| malformed("cuda version", &number.to_string()))?;
    Ok(format!("{}.{}", cuda / 1000, cuda % 1000 / 10))
}

fn mig_device(gpu: &HostPath, report: &MigReport) -> Result<MigDevice> {
    let MigReport { slot, gi, ci, .. } = *report;
    let gi_caps_path = gpu.join(format!("mig/gi{gi}"));
    Ok(MigDevice {
        // NVML's slot rather than the position: free slots must not shift the numbers that nvidia-smi shows.
        index: slot,
        uuid: checked_uuid(&report.uuid)?,
        gi,
        ci,
        ci_caps_path: gi_caps_path.join(format!("ci{ci}")),
        gi_caps_path,
        graphics: report.name.as_deref().and_then(has_graphics),
    })
}

/// Returns true if a MIG device's name ends with a profile for graphics, such as `MIG 1g.24gb+gfx`; None if it has none.
/// Attributes follow the sizes: `+` adds some, separated by commas, `-` takes them away.
fn has_graphics(name: &str) -> Option<bool> {
    let (_, profile) = name.rsplit_once("MIG ")?;
    let added = profile
        .split('+')
        .skip(1)
        .filter_map(|part| part.split('-').next());
    let mut attributes = added.flat_map(|part| part.split(','));
    Some(attributes.any(|attribute| attribute.trim() == "gfx"))
}

/// Returns the brand's name in the requirement language and in reports, by NVML's number (`nvmlBrandType_t`).
pub(super) fn brand(number: u32) -> &'static str {
    match number {
        1 => "Quadro",
        2 => "Tesla",
        3 => "NVS",
        4 => "GRID",
        5 => "GeForce",
        6 => "TITAN",
        7 => "VApps",
        8 => "VPC",
        9 => "VCS",
        10 => "VWS",
        11 => "CloudGaming",
        12 => "QuadroRTX",
        13 => "NvidiaRTX",
        14 => "Nvidia",
        15 => "GeForceRTX",
        16 => "TitanRTX",
        _ => "Unknown",
    }
}

/// Returns NVML's number of a brand's name.
pub(super) fn brand_number(name: &str) -> Option<u32> {
    (0..=BRANDS).find(|number| brand(*number) == name)
}

pub(super) fn is_uuid(text: &str) -> bool {
    // Old drivers write MIG UUIDs as MIG-GPU-<uuid>/<gi>/<ci>.
    (1..=MAX_TEXT_LEN).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

fn checked_uuid(text: &str) -> Result<String> {
    if is_uuid(text) {
        Ok(text.into())
    } else {
        Err(malformed("uuid", text))
    }
}

/// Escapes a product name for terminals: lists show it.
pub(super) fn product_name(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for c in text.chars().take(MAX_TEXT_LEN) {
        if c.is_control() {
            // Writing to a string cannot fail.
            let _ = write!(name, "{}", c.escape_default());
        } else {
            name.push(c);
        }
    }
    name
}

fn malformed(what: &str, text: &str) -> Error {
    let text: String = text.chars().take(MAX_TEXT_LEN).collect();
    Error::new(ErrorKind::DriverFailed, "nvml error")
        .of(format_args!("malformed {what}"))
        .with_cause(format!("\"{text}\""))
        .hint("the NVML library may be damaged; compare it with the driver package's")
}

/// Converts a failure before NVML is ready, for a driver root.
pub(crate) fn unavailable(fault: &Fault, root: &Path) -> Error {
    match fault {
        Fault::Load(text) => load_error(text, ErrorKind::DriverUnavailable, root),
        _ => error_in(fault, ErrorKind::DriverUnavailable, root),
    }
}

/// Converts a failure of the query process to an error of the kind for its phase.
pub(crate) fn error(fault: &Fault, kind: ErrorKind) -> Error {
    error_in(fault, kind, Path::new("/"))
}

fn error_in(fault: &Fault, kind: ErrorKind, root: &Path) -> Error {
    match fault {
        Fault::System { operation, errno } => {
            let errno = Errno::from_raw(*errno);
            let error = Error::system(operation, errno).with_kind(kind);
            if operation.starts_with("change root") && errno == Errno::EPERM {
                error.hint(
                    "a driver root other than / needs CAP_SYS_CHROOT: run this as root, or in a user namespace",
                )
            } else {
                error
            }
        }
        Fault::Load(text) => load_error(text, kind, root),
        Fault::Nvml {
            function,
            code,
            text,
        } => {
            let error = Error::new(kind, "nvml error").because(text);
            match nvml_hint(*code, function, root) {
                Some(hint) => error.hint(hint),
                None => error,
            }
        }
        Fault::Nonsense { function, text } => Error::new(kind, text).hint(format!(
            "{function} returned invalid data; the NVML library may be damaged"
        )),
        Fault::NotServed => not_served().with_kind(kind),
    }
}

/// Lowercases only the part after the last colon, as upstream does: the rest contains file names.
fn load_error(text: &str, kind: ErrorKind, root: &Path) -> Error {
    let text = text.lines().next().unwrap_or_default();
    // The loader's messages about an existing file.
    let closed = ["failed to map segment", "ermission denied", "not permitted"];
    let closed = closed.iter().any(|words| text.contains(words));
    let error = match text.rsplit_once(": ") {
        Some((head, tail)) => {
            let error = Error::new(kind, "load library failed").of(head);
            error.because(tail)
        }
        None => Error::new(kind, "load library failed").because(text),
    };
    if closed {
        return error.hint(
            "its file system may be mounted noexec, or NVML's user may not be allowed to read it",
        );
    }
    error.hint(DriverRoot::without_driver(root))
}

fn has_module(root: &&Path) -> bool {
    root.join("proc/driver/nvidia/version").exists()
}

/// Returns a hint for an NVML code, if there is one.
fn nvml_hint(code: u32, function: &str, root: &Path) -> Option<Hint> {
    let hint = match code {
        4 => {
            return Some(Setting::User.between(
                "the query runs as the user of ",
                ", which must be able to open /dev/nvidiactl",
            ));
        }
        // A container sees it without having a node.
        9 if [root, Path::new("/")].iter().any(has_module) => {
            let maker = nodes::MAKER_OF_CONTROL;
            let text = format!(
                "the kernel module is loaded, but /dev/nvidiactl is missing here or may not be opened: {maker}; a container, or a service with PrivateDevices=, must be given it"
            );
            return Some(text.into());
        }
        9 => "load the kernel module: modprobe nvidia",
        13 => {
            let text = format!(
                "libnvidia-ml.so.1 has no {function}: it is damaged, or its driver is not supported"
            );
            return Some(text.into());
        }
        15 => {
            "the GPU has fallen off the bus; see the kernel log for Xid errors, then reset it or reboot"
        }
        16 => "reset the GPU: nvidia-smi --gpu-reset",
        18 => {
            "the driver was updated but its old kernel module is still loaded: reload it or reboot"
        }
        _ => return None,
    };
    Some(hint.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
