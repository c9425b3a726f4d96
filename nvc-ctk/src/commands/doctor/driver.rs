//! Checks the driver: module, nodes, libraries, NVML.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use libnvc::host::{DriverConfig, DriverSession};

use super::{Fault, read};

const VERSION: &str = "/proc/driver/nvidia/version";
const NO_GPU: &str = "nvidia-smi fails, and no container gets a GPU";

pub(super) fn module() -> Vec<Fault> {
    if Path::new("/dev/dxg").exists() {
        return Vec::new(); // uses the Windows driver
    }
    if Path::new(VERSION).exists() {
        return mismatch();
    }
    let modules = read("/proc/modules").unwrap_or_default();
    if modules.lines().any(|line| line.starts_with("nouveau ")) {
        let repair = "echo blacklist nouveau > /etc/modprobe.d/nouveau.conf, rebuild the initial ramdisk, and reboot";
        return vec![Fault::new(
            "the module nouveau has the GPUs",
            NO_GPU,
            repair,
        )];
    }
    vec![Fault::new(
        "the module nvidia is not loaded",
        NO_GPU,
        "modprobe nvidia; if that fails, install the driver",
    )]
}

/// Checks that module and libraries have the same version.
fn mismatch() -> Vec<Fault> {
    let text = read(VERSION).unwrap_or_default();
    let module = text.lines().next().and_then(|line| {
        line.split_whitespace()
            .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
    });
    let libraries = nvc_toolkit::driver_files::version(Path::new("/")).ok();
    match (module, libraries) {
        (Some(module), Some(libraries)) if module != libraries => {
            let what =
                format!("the module is of driver {module}, the libraries are of {libraries}");
            let shows = "nvidia-smi: Driver/library version mismatch";
            vec![Fault::new(
                what,
                shows,
                "reboot, or unload the modules and load the new ones",
            )]
        }
        _ => Vec::new(),
    }
}

pub(super) fn nodes() -> Vec<Fault> {
    if !Path::new(VERSION).exists() {
        return Vec::new(); // already reported
    }
    let mut faults = Vec::new();
    let devices = read("/proc/devices").unwrap_or_default();
    let major = |names: &[&str]| {
        let characters = devices
            .lines()
            .take_while(|line| !line.starts_with("Block"));
        let mut pairs = characters.filter_map(|line| line.trim().split_once(' '));
        pairs
            .find(|(_, name)| names.contains(name))
            .and_then(|(major, _)| major.parse::<u32>().ok())
    };
    let nvidia = major(&["nvidia", "nvidia-frontend"]);
    let uvm = major(&["nvidia-uvm"]);
    let make = "nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules";
    let mut wanted: Vec<(String, Option<u32>, u32, &str)> = vec![
        (
            "/dev/nvidiactl".to_string(),
            nvidia,
            255,
            "nvidia-smi and CUDA fail",
        ),
        (
            "/dev/nvidia-uvm".to_string(),
            uvm,
            0,
            "nvidia-smi works, and cuInit returns 999",
        ),
        (
            "/dev/nvidia-uvm-tools".to_string(),
            uvm,
            1,
            "profilers fail in containers",
        ),
    ];
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus")
        .into_iter()
        .flatten()
        .flatten();
    for gpu in gpus {
        let text = std::fs::read_to_string(gpu.path().join("information")).unwrap_or_default();
        let minor = text
            .lines()
            .find_map(|line| line.strip_prefix("Device Minor:"));
        if let Some(minor) = minor.and_then(|minor| minor.trim().parse().ok()) {
            wanted.push((
                format!("/dev/nvidia{minor}"),
                nvidia,
                minor,
                "this GPU is missing in containers",
            ));
        }
    }
    for (path, major, minor, shows) in wanted {
        let repair = if path.ends_with(|c: char| c.is_ascii_digit()) {
            format!("nvidia-modprobe -c {minor}")
        } else {
            make.into()
        };
        let Some(major) = major else {
            let what = format!("{path} has no driver in /proc/devices");
            faults.push(Fault::new(what, shows, "modprobe nvidia nvidia-uvm"));
            continue;
        };
        match std::fs::symlink_metadata(&path) {
            Err(_) => faults.push(Fault::new(format!("{path} is missing"), shows, repair)),
            Ok(facts) if !facts.file_type().is_char_device() => {
                faults.push(Fault::new(
                    format!("{path} is no device"),
                    shows,
                    format!("rm -r {path}; {repair}"),
                ));
            }
            Ok(facts) => {
                let found = (
                    nix::sys::stat::major(facts.rdev()),
                    nix::sys::stat::minor(facts.rdev()),
                );
                let right = (u64::from(major), u64::from(minor));
                if found != right {
                    let what = format!(
                        "{path} is device {}:{}, the driver's is {}:{}",
                        found.0, found.1, right.0, right.1
                    );
                    faults.push(Fault::new(what, shows, format!("rm {path}; {repair}")));
                } else if facts.permissions().mode() & 0o006 != 0o006 && facts.gid() == 0 {
                    let what = format!("only root may use {path}");
                    let shows = "users other than root have no GPU, also in rootless containers";
                    faults.push(Fault::new(
                        what,
                        shows,
                        format!("chmod 666 {path}; see NVreg_DeviceFileMode of the module"),
                    ));
                }
            }
        }
    }
    faults
}

pub(super) fn libraries() -> Vec<Fault> {
    if Path::new("/dev/dxg").exists() {
        return Vec::new();
    }
    let Ok(cache) = std::fs::read("/etc/ld.so.cache") else {
        return vec![Fault::new(
            "/etc/ld.so.cache cannot be read",
            "programs do not find the driver's libraries",
            "ldconfig",
        )];
    };
    let directories: BTreeSet<_> = libnvc::host::cached_directories(&cache)
        .into_iter()
        .collect();
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/lib",
    ];
    let mut faults = Vec::new();
    for (name, shows) in [
        ("libcuda.so.1", "CUDA programs do not start"),
        ("libnvidia-ml.so.1", "nvidia-smi and the toolkit fail"),
    ] {
        let cached = directories
            .iter()
            .any(|directory| directory.join(name).exists());
        if cached {
            continue;
        }
        let found = usual
            .iter()
            .map(|directory| Path::new(directory).join(name))
            .find(|path| path.exists());
        faults.push(match found {
            Some(path) => Fault::new(
                format!("{} is not in the loader's cache", path.display()),
                shows,
                "ldconfig",
            ),
            None => Fault::new(
                format!("{name} is missing"),
                shows,
                "install the driver's libraries",
            ),
        });
    }
    faults
}

pub(super) fn nvml() -> Vec<Fault> {
    let answer = DriverSession::open(&DriverConfig::default()).and_then(|mut session| {
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
            return vec![Fault::new(error.message(), NO_GPU, repair)];
        }
    };
    let mut faults = Vec::new();
    for failed in &info.failed {
        let repair = failed
            .error
            .advice()
            .unwrap_or("see the kernel's log for Xid errors")
            .to_string();
        faults.push(Fault::new(
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
            faults.push(Fault::new(what, "this GPU is in no specification", repair));
        }
    }
    if info.gpus.iter().any(|gpu| !gpu.mig_devices.is_empty())
        && read("/proc/driver/nvidia-caps/mig-minors").is_none()
    {
        let what = "/proc/driver/nvidia-caps/mig-minors is missing";
        faults.push(Fault::new(
            what,
            "MIG devices are in no specification",
            "load the module nvidia with its capability devices",
        ));
    }
    faults
}

pub(super) fn persistence() -> Vec<Fault> {
    let program = [
        "/usr/bin/nvidia-persistenced",
        "/usr/sbin/nvidia-persistenced",
    ];
    let is_installed = program.iter().any(|path| Path::new(path).exists());
    let socket = [
        "/run/nvidia-persistenced/socket",
        "/var/run/nvidia-persistenced/socket",
    ];
    if !is_installed || socket.iter().any(|path| Path::new(path).exists()) {
        return Vec::new();
    }
    let what = "nvidia-persistenced is installed and does not run";
    vec![Fault::new(
        what,
        "each first use of a GPU takes seconds",
        "systemctl enable --now nvidia-persistenced",
    )]
}
