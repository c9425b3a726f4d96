//! Writes the kernel modules' files under /proc: versions, parameters, GPUs, capabilities and device majors.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use crate::files;
use crate::profile::{NONE, Profile};

/// Major numbers of the driver's devices other than the fixed 195.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Majors {
    /// Capability nodes.
    pub caps: u32,
    /// IMEX channels.
    pub imex: u32,
    /// Unified memory.
    pub uvm: u32,
}

/// Loop limit of the real driver; a profile may have more GPUs.
const GPUS: u32 = 32;
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;

/// Returns the minor number of a GPU instance's access capability.
pub fn gpu_instance_minor(gpu: u32, instance: u32) -> u32 {
    3 + (gpu * GPU_INSTANCES + instance) * (COMPUTE_INSTANCES + 1)
}

/// Returns the minor number of a compute instance's access capability.
pub fn compute_instance_minor(gpu: u32, instance: u32, compute: u32) -> u32 {
    gpu_instance_minor(gpu, instance) + 1 + compute
}

/// Returns majors unused on this machine, so that opening a node never reaches a real device.
pub fn free_majors() -> Majors {
    let mut free = free();
    let mut next = || free.next().unwrap_or(511);
    Majors {
        caps: next(),
        imex: next(),
        uvm: next(),
    }
}

/// Returns the majors of a machine whose /proc/devices shows a driver.
static SHOWN: OnceLock<fn() -> Majors> = OnceLock::new();

/// Gives drivers that are built from now on the majors that `shown` returns.
pub(crate) fn use_majors_of(shown: fn() -> Majors) {
    SHOWN.get_or_init(|| shown);
}

/// Returns the majors of a driver that are not chosen: those of the machine's driver, since a driver root with others
/// would have nodes of no driver; free ones if the machine is not ours.
pub(super) fn majors() -> Majors {
    SHOWN.get().map_or_else(free_majors, |shown| shown())
}

/// Returns majors for other drivers, with their names.
pub(super) fn majors_of(modules: &[String], majors: Majors) -> Vec<(String, u32)> {
    let taken = [majors.caps, majors.imex, majors.uvm];
    let free = free().filter(move |major| !taken.contains(major));
    modules.iter().cloned().zip(free).collect()
}

fn free() -> impl Iterator<Item = u32> {
    let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    let taken: Vec<u32> = devices
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect();
    (384..512).rev().filter(move |major| !taken.contains(major))
}

/// Writes /proc/driver/nvidia.
pub(super) fn write(proc: &Path, profile: &Profile) -> io::Result<()> {
    let version = &profile.driver;
    let file = |name: &str, text: &str| files::file(&proc.join(name), text, 0o444);
    file(
        "version",
        &format!(
            "NVRM version: NVIDIA UNIX Simulated Kernel Module  {version}  Thu Jan  1 00:00:00 UTC 1970\n\
             GCC version:  none\n"
        ),
    )?;
    file(
        "params",
        "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n\
         DeviceFileGID: 0\nDeviceFileMode: 438\nRegistryDwords: \"\"\nExcludedGpus: \"\"\n",
    )?;
    file("registry", "Binary: \"\"\n")?;
    files::directory(&proc.join("gpus"))?;
    for gpu in profile.gpus.iter().filter(|gpu| gpu.bus_id != NONE) {
        let text = format!(
            "Model: \t\t {}\nIRQ:   \t\t 0\nGPU UUID: \t {}\nVideo BIOS: \t ??.??.??.??.??\n\
             Bus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n\
             Bus Location: \t {}\nDevice Minor: \t {}\nGPU Firmware: \t {version}\nGPU Excluded:\t {}\n",
            gpu.model,
            gpu.uuid,
            gpu.bus_id,
            gpu.minor,
            if gpu.excluded { "Yes" } else { "No" }
        );
        file(&format!("gpus/{}/information", gpu.bus_id), &text)?;
        file(&format!("gpus/{}/registry", gpu.bus_id), "Binary: \"\"\n")?;
    }
    capabilities(&proc.join("capabilities"), profile)
}

/// Writes the capability files. The last two lines of a compute instance's file are specific to this simulation: its
/// nvidia-smi has no driver to query. Readers of the format stop before them.
fn capabilities(directory: &Path, profile: &Profile) -> io::Result<()> {
    let file = |name: &str, minor: u32, mode: u32, more: &str| {
        let text = format!(
            "DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n{more}"
        );
        files::file(&directory.join(name), text, mode)
    };
    file("mig/config", 1, 0o400, "")?;
    file("mig/monitor", 2, 0o444, "")?;
    for gpu in &profile.gpus {
        files::directory(&directory.join(format!("gpu{}/mig", gpu.minor)))?;
    }
    for mig in &profile.mig_devices {
        let Some(gpu) = profile.gpus.get(mig.gpu) else {
            continue;
        };
        let (gpu, gi, ci) = (gpu.minor, mig.gpu_instance, mig.compute_instance);
        let instance = format!("gpu{gpu}/mig/gi{gi}");
        let minor = gpu_instance_minor(gpu, gi);
        file(&format!("{instance}/access"), minor, 0o444, "")?;
        let minor = compute_instance_minor(gpu, gi, ci);
        let more = format!("SimulatedName: {}\nSimulatedUUID: {}\n", mig.name, mig.uuid);
        file(&format!("{instance}/ci{ci}/access"), minor, 0o444, &more)?;
    }
    Ok(())
}

/// Returns the text of /proc/driver/nvidia-caps/mig-minors.
pub(super) fn mig_minors(profile: &Profile) -> String {
    let mut text = "config 1\nmonitor 2\n".to_owned();
    let gpus = profile.gpus.iter().map(|gpu| gpu.minor + 1).max();
    for gpu in 0..gpus.unwrap_or(0).max(GPUS) {
        for gi in 0..GPU_INSTANCES {
            let minor = gpu_instance_minor(gpu, gi);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "gpu{gpu}/gi{gi}/access {minor}");
            for ci in 0..COMPUTE_INSTANCES {
                let minor = compute_instance_minor(gpu, gi, ci);
                let _ = writeln!(text, "gpu{gpu}/gi{gi}/ci{ci}/access {minor}");
            }
        }
    }
    text
}

/// Returns the text of /proc/devices: this machine's with the driver's majors, and those of other drivers.
pub(super) fn devices(majors: Majors, others: &[(String, u32)]) -> String {
    let machine = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    let (characters, blocks) = machine
        .split_once("Block devices:")
        .unwrap_or(("Character devices:\n", ""));
    let mut text: String = characters
        .lines()
        .filter(|line| !line.is_empty() && !line.contains(" nvidia") && !line.contains(" gdrdrv"))
        .flat_map(|line| [line, "\n"])
        .collect();
    for (major, name) in [
        (195, "nvidia"),
        (195, "nvidia-modeset"),
        (195, "nvidiactl"),
        (majors.caps, "nvidia-caps"),
        (majors.imex, "nvidia-caps-imex-channels"),
        (majors.uvm, "nvidia-uvm"),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{major:3} {name}");
    }
    for (name, major) in others {
        let _ = writeln!(text, "{major:3} {name}");
    }
    text + "\nBlock devices:" + blocks
}
