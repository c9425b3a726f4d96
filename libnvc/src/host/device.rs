//! Converts NVML's answers to GPUs, after validating them.
//!
//! These strings end up in paths, in comparisons with user input, and on terminals.

use std::fmt::Write;

use nix::errno::Errno;
use serde::Serialize;

use super::query::{
    Fault, GpuAnswer, GpuFault, GpuReport, MigReport, PciReport, Versions, not_served,
};
use super::{DeviceNode, DriverVersions, Gpu, MigDevice, NVIDIA_MAJOR, integrated};
use crate::error::{Error, ErrorKind, Result};
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
        for (index, report) in (0..).zip(reports) {
            if let Ok(report) = report {
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
                    busid: pci.map(busid),
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
        busid: busid(report.pci),
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
fn brand(number: u32) -> &'static str {
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

fn busid(pci: PciReport) -> String {
    format!("{:08x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
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

/// Converts a failure of the query process to an error of the kind for its phase.
pub(crate) fn error(fault: &Fault, kind: ErrorKind) -> Error {
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
        Fault::Load(text) => load_error(text, kind),
        Fault::Nvml {
            function,
            code,
            text,
        } => {
            let error = Error::new(kind, "nvml error").because(text);
            match nvml_hint(*code, function) {
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
fn load_error(text: &str, kind: ErrorKind) -> Error {
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
    error.hint("install the NVIDIA driver, or name the directory that has it with --root")
}

/// Returns a hint for an NVML code, if there is one.
fn nvml_hint(code: u32, function: &str) -> Option<String> {
    let hint = match code {
        4 => "the query runs as the user of --user, which must be able to open /dev/nvidiactl",
        9 => "load the kernel module: modprobe nvidia",
        13 => {
            return Some(format!(
                "libnvidia-ml.so.1 has no {function}: it is damaged, or its driver is not supported"
            ));
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
mod tests {
    use super::*;

    fn report(minor: Option<u32>) -> GpuReport {
        GpuReport {
            name: "NVIDIA A100-SXM4-40GB".into(),
            uuid: "GPU-c2f9e6d7-71a8-4b0d-8e35-52d6a90f7b02".into(),
            pci: PciReport {
                domain: 0x1_0000,
                bus: 0xaf,
                device: 0,
            },
            compute_capability: (8, 0),
            brand: 14,
            minor,
            mig_capable: true,
            mig_enabled: true,
            coherent: Some(false),
            mig_devices: vec![MigReport {
                name: None,
                slot: 2,
                uuid: "MIG-1d2e3f40-5a6b-57c8-9d0e-1f2a3b4c5d11".into(),
                gi: 5,
                ci: 0,
            }],
        }
    }

    fn lost() -> Box<GpuFault> {
        Box::new(GpuFault {
            name: None,
            uuid: None,
            pci: Some(report(None).pci),
            no_pci: false,
            compute_capability: None,
            fault: Fault::Nvml {
                function: "nvmlDeviceGetUUID".into(),
                code: 15,
                text: "GPU is lost".into(),
            },
        })
    }

    #[test]
    fn a_gpu_gets_its_paths_from_its_minor_number() {
        let gpu = gpu(4, &report(Some(3))).unwrap();
        assert_eq!(gpu.index, 4);
        assert_eq!(gpu.busid, "00010000:af:00.0");
        assert_eq!(gpu.arch, "8.0");
        assert_eq!(gpu.brand, "Nvidia");
        let node = gpu.node.unwrap();
        assert_eq!(node.path, HostPath::new("/dev/nvidia3"));
        assert_eq!((node.number.major, node.number.minor), (195, 3));
        let directory = HostPath::new("/proc/driver/nvidia/capabilities/gpu3");
        assert_eq!(gpu.mig_caps_path.as_ref(), Some(&directory));
        let mig = gpu.mig_devices.first().unwrap();
        assert_eq!((mig.index, mig.gi, mig.ci), (2, 5, 0));
        assert_eq!(mig.gi_caps_path, directory.join("mig/gi5"));
        assert_eq!(mig.ci_caps_path, directory.join("mig/gi5/ci0"));
    }

    #[test]
    fn wsl_has_no_nodes() {
        let gpu = gpu(0, &report(None)).unwrap();
        assert_eq!((gpu.minor, gpu.node, gpu.mig_caps_path), (0, None, None));
        assert!(gpu.mig_devices.is_empty());
    }

    #[test]
    fn a_failed_gpu_is_left_out_and_keeps_its_place() {
        let reports = [Ok(report(Some(0))), Err(lost()), Ok(report(Some(2)))];
        let info = DeviceInfo::from_reports(&reports).unwrap();
        let indices: Vec<u32> = info.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(indices, [0, 2]);
        let failed = info.failed.first().unwrap();
        assert_eq!(failed.to_string(), "GPU 1 (00010000:af:00.0)");
        assert_eq!(failed.error.message(), "nvml error: gpu is lost");
    }

    #[test]
    fn only_failed_gpus_are_an_error_but_no_gpus_are_not() {
        let error = DeviceInfo::from_reports(&[Err(lost()), Err(lost())]).unwrap_err();
        assert_eq!(error.message(), "nvml error: gpu is lost");
        assert_eq!(error.kind(), ErrorKind::DriverFailed);
        assert!(DeviceInfo::from_reports(&[]).unwrap().gpus.is_empty());
    }

    #[test]
    fn invalid_values_fail_the_gpu() {
        for uuid in ["", "GPU-\u{fffd}", "GPU-1\n", "GPU 1", &"x".repeat(97)] {
            let broken = GpuReport {
                uuid: uuid.into(),
                ..report(Some(0))
            };
            let error = gpu(0, &broken).unwrap_err();
            assert!(error.message().starts_with("nvml error: malformed uuid: "));
            let known: String = uuid.chars().take(MAX_TEXT_LEN).collect();
            assert!(
                error
                    .message()
                    .ends_with(&format!("malformed uuid: \"{known}\""))
            );
        }
        let broken = GpuReport {
            compute_capability: (-1, 0),
            ..report(Some(0))
        };
        assert!(gpu(0, &broken).is_err());
        // Bit masks of minor numbers are as long as the highest one.
        let error = gpu(0, &report(Some(1 << 20))).unwrap_err();
        let text = "nvml error: malformed minor number: \"1048576\"";
        assert_eq!(error.message(), text);
        let odd = GpuReport {
            name: "A\u{1b}[2J\u{fffd}é".into(),
            ..report(Some(0))
        };
        assert_eq!(gpu(0, &odd).unwrap().model, "A\\u{1b}[2J\u{fffd}é");
    }

    #[test]
    fn versions_are_checked() {
        let with = |driver: &str, cuda| {
            versions(&Versions {
                driver: Ok(driver.into()),
                cuda: Ok(cuda),
            })
        };
        for (number, text) in [
            (12020, "12.2"),
            (11081, "11.8"),
            (12100, "12.10"),
            (13000, "13.0"),
            (0, "0.0"),
        ] {
            assert_eq!(with("535.261.03", number).unwrap().cuda, text);
        }
        for driver in ["", "..", "../x", "535/", "5\u{fffd}", "5 5", "5\n"] {
            let message = with(driver, 12020).unwrap_err().message();
            assert!(message.starts_with("nvml error: malformed driver version: \""));
        }
        let message = with("535", -1).unwrap_err().message();
        assert_eq!(message, "nvml error: malformed cuda version: \"-1\"");
    }

    #[test]
    fn profiles_for_graphics_say_so() {
        for (name, expected) in [
            ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+gfx", Some(true)),
            ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb", Some(false)),
            ("X MIG 1c.2g.48gb+me.all,gfx", Some(true)),
            ("X MIG 4g.96gb+gfx-me", Some(true)),
            ("X MIG 4g.96gb+me-gfx", Some(false)),
            ("X MIG 1g.24gb-gfx", Some(false)),
            ("X+gfx MIG 1g.24gb", Some(false)),
            ("X+gfx", None),
            ("", None),
        ] {
            assert_eq!(has_graphics(name), expected, "{name}");
        }
    }

    #[test]
    fn brands_have_names() {
        let names: Vec<&str> = (0..18).map(brand).collect();
        assert_eq!(
            names.join(" "),
            "Unknown Quadro Tesla NVS GRID GeForce TITAN VApps VPC VCS VWS CloudGaming QuadroRTX NvidiaRTX Nvidia \
             GeForceRTX TitanRTX Unknown"
        );
        assert_eq!(brand(u32::MAX), "Unknown");
        for (number, name) in (0..).zip(names).take(17) {
            assert_eq!(brand_number(name), Some(number));
        }
        assert_eq!(brand_number("nvidia"), None);
    }

    #[test]
    fn faults_read_like_upstreams() {
        let message = |fault: Fault| error(&fault, ErrorKind::DriverUnavailable).message();
        for (text, expected) in [
            (
                "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
                "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory",
            ),
            ("Odd", "load library failed: odd"),
            ("/A: Wrong\nmore", "load library failed: /A: wrong"),
            ("", "load library failed: "),
        ] {
            assert_eq!(message(Fault::Load(text.into())), expected);
        }
        let root = |errno: Errno| {
            let operation = "change root failed".into();
            let errno = errno as i32;
            let fault = Fault::System { operation, errno };
            error(&fault, ErrorKind::DriverUnavailable)
        };
        assert!(
            root(Errno::EPERM)
                .advice()
                .unwrap()
                .contains("user namespace")
        );
        assert_eq!(root(Errno::ENOENT).advice(), None);
        let system = Fault::System {
            operation: "privilege change failed".into(),
            errno: 1,
        };
        assert_eq!(
            message(system),
            "privilege change failed: operation not permitted"
        );
        let missing = Fault::Nvml {
            function: "nvmlDeviceGetUUID".into(),
            code: 13,
            text: "Function Not Found".into(),
        };
        let error = error(&missing, ErrorKind::DriverFailed);
        assert_eq!(error.message(), "nvml error: function not found");
        assert!(error.advice().unwrap().contains("nvmlDeviceGetUUID"));
    }
}
