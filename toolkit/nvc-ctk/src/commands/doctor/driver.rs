//! Checks the driver: module, nodes, libraries, NVML.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use libnvc::host::{DriverConfig, DriverRoot, DriverSession, major_of, procfs};

use super::hardware;
use super::place::{Kind, Place};
use super::{Finding, NO_GPU, read};
use crate::query;

const VERSION: &str = "/proc/driver/nvidia/version";

pub(super) fn module(place: &Place) -> Vec<Finding> {
    if place.kind != Kind::Usual {
        return Vec::new();
    }
    if Path::new(VERSION).exists() {
        mismatch(place)
    } else {
        vec![hardware::no_module()]
    }
}

/// Checks that module and libraries have the same version.
fn mismatch(place: &Place) -> Vec<Finding> {
    let host = DriverRoot::open(Path::new("/")).ok();
    let module = host.and_then(|host| procfs::module_version(&host));
    let libraries = nvc_generate::driver_files::version(&place.root).ok();
    match (module, libraries) {
        (Some(module), Some(libraries)) if module != libraries => {
            let what =
                format!("the module is of driver {module}, the libraries are of {libraries}");
            let symptom = "nvidia-smi: Driver/library version mismatch";
            vec![Finding::wrong(
                what,
                symptom,
                "reboot, or unload the modules and load the new ones",
            )]
        }
        _ => Vec::new(),
    }
}

pub(super) fn nodes(place: &Place) -> Vec<Finding> {
    if place.kind != Kind::Usual || !Path::new(VERSION).exists() {
        return Vec::new(); // already reported
    }
    let dev = place.dev();
    let dev = dev.display();
    let major = |driver| major_of(driver).ok().flatten();
    let (nvidia, uvm) = (major("nvidia"), major("nvidia-uvm"));
    let make = "nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules";
    let shared = [
        ("nvidiactl", nvidia, 255, "nvidia-smi and CUDA fail"),
        (
            "nvidia-uvm",
            uvm,
            0,
            "nvidia-smi works, and cuInit returns 999",
        ),
        ("nvidia-uvm-tools", uvm, 1, "profilers fail in containers"),
    ];
    let shared = shared.map(|(name, major, minor, symptom)| RequiredNode {
        path: format!("{dev}/{name}"),
        major,
        minor,
        symptom,
        repair: make.into(),
    });
    let of_gpus = gpu_minors().into_iter().map(|minor| RequiredNode {
        path: format!("{dev}/nvidia{minor}"),
        major: nvidia,
        minor,
        symptom: "this GPU is missing in containers",
        repair: format!("nvidia-modprobe -c {minor}"),
    });
    let nodes = shared.into_iter().chain(of_gpus);
    nodes.filter_map(|node| node.finding()).collect()
}

/// Returns the minor numbers of the GPUs that the module drives.
fn gpu_minors() -> Vec<u32> {
    let Ok(root) = DriverRoot::open(Path::new("/")) else {
        return Vec::new();
    };
    let gpus = procfs::gpus(&root).into_iter();
    gpus.filter_map(|gpu| gpu.minor).collect()
}

/// A device node that the driver needs.
struct RequiredNode {
    path: String,
    /// None if no driver has it in /proc/devices.
    major: Option<u32>,
    minor: u32,
    /// Symptom without it.
    symptom: &'static str,
    /// The command that creates it.
    repair: String,
}

impl RequiredNode {
    fn finding(&self) -> Option<Finding> {
        let Self {
            path,
            minor,
            repair,
            ..
        } = self;
        let symptom = self.symptom;
        let Some(major) = self.major else {
            let what = format!("{path} has no driver in /proc/devices");
            return Some(Finding::wrong(what, symptom, "modprobe nvidia nvidia-uvm"));
        };
        let Ok(facts) = std::fs::symlink_metadata(path) else {
            let what = format!("{path} is missing");
            return Some(Finding::wrong(what, symptom, repair));
        };
        if !facts.file_type().is_char_device() {
            let what = format!("{path} is not a device");
            return Some(Finding::wrong(
                what,
                symptom,
                format!("rm -r {path}; {repair}"),
            ));
        }
        let number = facts.rdev();
        let found = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        if found != (u64::from(major), u64::from(*minor)) {
            let what = format!(
                "{path} is device {}:{}, the driver's is {major}:{minor}",
                found.0, found.1
            );
            return Some(Finding::wrong(
                what,
                symptom,
                format!("rm {path}; {repair}"),
            ));
        }
        let is_for_root = facts.permissions().mode() & 0o006 != 0o006 && facts.gid() == 0;
        is_for_root.then(|| {
            Finding::wrong(
                format!("only root may use {path}"),
                "users other than root have no GPU, also in rootless containers",
                format!("chmod 666 {path}; see NVreg_DeviceFileMode of the module"),
            )
        })
    }
}

pub(super) fn nvml(place: &Place) -> Vec<Finding> {
    // A Jetson need not have it.
    if place.kind == Kind::Tegra {
        return Vec::new();
    }
    let config = DriverConfig {
        root: place.root.clone(),
        program: query::program(),
        ..DriverConfig::default()
    };
    let answer = DriverSession::open(&config, None).and_then(|mut session| {
        session.ready()?;
        session.devices()
    });
    let info = match answer {
        Ok(info) => info,
        Err(error) => {
            let repair = error
                .advice()
                .unwrap_or("nvidia-smi says more; see the kernel's log for NVRM")
                .to_string();
            return vec![Finding::wrong(error.message(), NO_GPU, repair)];
        }
    };
    let mut findings = Vec::new();
    for failed in &info.failed {
        let repair = failed
            .error
            .advice()
            .unwrap_or("see the kernel's log for Xid errors")
            .to_string();
        findings.push(Finding::wrong(
            format!("{failed}: {}", failed.error.message()),
            "this GPU is left out",
            repair,
        ));
    }
    for index in &info.divided {
        let has_devices = info
            .gpus
            .iter()
            .any(|gpu| gpu.index == *index && !gpu.mig_devices.is_empty());
        if !has_devices {
            let what = format!("GPU {index} is in MIG mode and has no MIG devices");
            let repair = format!(
                "nvidia-smi mig -i {index} -cgi PROFILE -C, or nvidia-smi -i {index} -mig 0"
            );
            findings.push(Finding::advice(
                what,
                "this GPU is in no specification",
                repair,
            ));
        }
    }
    if info.gpus.iter().any(|gpu| !gpu.mig_devices.is_empty()) {
        findings.extend(mig(place));
    }
    findings
}

/// Checks the files and nodes of MIG devices' capabilities.
fn mig(place: &Place) -> Option<Finding> {
    let symptom = "MIG devices are in no specification";
    if !Path::new(VERSION).exists() {
        return None; // already reported
    }
    if read("/proc/driver/nvidia-caps/mig-minors").is_none() {
        let what = "/proc/driver/nvidia-caps/mig-minors is missing";
        let repair = "load the module nvidia with its capability devices";
        return Some(Finding::wrong(what, symptom, repair));
    }
    let nodes = place.dev().join("nvidia-caps");
    (!nodes.exists()).then(|| {
        let what = format!("there are MIG devices, and {} is missing", nodes.display());
        let repair =
            "find /proc/driver/nvidia/capabilities -name access -exec nvidia-modprobe -f {} ';'";
        Finding::wrong(what, symptom, repair)
    })
}

pub(super) fn persistence(place: &Place) -> Vec<Finding> {
    let program = [
        "/usr/bin/nvidia-persistenced",
        "/usr/sbin/nvidia-persistenced",
    ];
    let is_installed = program.iter().any(|path| place.path(path).exists());
    let socket = [
        "/run/nvidia-persistenced/socket",
        "/var/run/nvidia-persistenced/socket",
    ];
    if !is_installed
        || socket
            .iter()
            .any(|path| Path::new(path).exists() || place.path(path).exists())
    {
        return Vec::new();
    }
    let what = "nvidia-persistenced is installed and does not run";
    vec![Finding::advice(
        what,
        "each first use of a GPU takes seconds",
        "systemctl enable --now nvidia-persistenced",
    )]
}
