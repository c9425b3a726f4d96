//! Formats the facts about GPUs in version 1.0: JSON and text.

use std::fs;

use libnvc::Result;
use libnvc::host::monitor::GpuFacts;
use serde::Serialize;

use super::lines::Lines;
use super::v2_types::architecture;
use crate::plugin::gpus::DriverFacts;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Info<'a> {
    version: Version,
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    driver: String,
    #[serde(rename = "CUDA")]
    cuda: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Device<'a> {
    #[serde(rename = "UUID")]
    uuid: &'a str,
    path: String,
    model: Option<&'a str>,
    power: Option<u32>,
    #[serde(rename = "CPUAffinity")]
    cpu_affinity: u32,
    #[serde(rename = "PCI")]
    pci: Pci<'a>,
    clocks: Clocks,
    topology: Option<Vec<Link<'a>>>,
    family: Option<&'static str>,
    arch: Option<String>,
    cores: Option<u32>,
    memory: Memory,
}

#[derive(Serialize)]
struct Pci<'a> {
    #[serde(rename = "BusID")]
    busid: &'a str,
    #[serde(rename = "BAR1")]
    bar1: Option<u64>,
    #[serde(rename = "Bandwidth")]
    bandwidth: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Clocks {
    cores: Option<u32>,
    memory: Option<u32>,
}

#[derive(Serialize)]
struct Link<'a> {
    #[serde(rename = "BusID")]
    busid: &'a str,
    #[serde(rename = "Link")]
    link: u8,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Memory {
    #[serde(rename = "ECC")]
    ecc: Option<bool>,
    global: Option<u64>,
    shared: Option<u32>,
    constant: Option<u32>,
    #[serde(rename = "L2Cache")]
    l2_cache: Option<u32>,
    bandwidth: Option<u64>,
}

/// Returns the versions as text.
///
/// # Errors
/// NVML's or CUDA's message.
fn versions(facts: &DriverFacts) -> Result<Version> {
    Ok(Version {
        driver: facts.versions.driver.clone()?,
        cuda: facts.versions.cuda.clone()?.to_string(),
    })
}

/// Returns the JSON of /gpu/info/json.
///
/// # Errors
/// If the versions are unknown.
pub(super) fn json(facts: &DriverFacts) -> Result<String> {
    Ok(super::answer::json(&Info {
        version: versions(facts)?,
        devices: facts.gpus.iter().map(device).collect(),
    }))
}

/// Returns the text of /gpu/info.
///
/// # Errors
/// If the versions are unknown.
pub(super) fn text(facts: &DriverFacts) -> Result<String> {
    let version = versions(facts)?;
    let mut lines = Lines::default();
    lines.plain("");
    lines.value("Driver version", Some(version.driver), "");
    lines.value("Supported CUDA version", Some(version.cuda), "");
    for (number, gpu) in facts.gpus.iter().enumerate() {
        lines.plain("");
        lines.plain(&format!("Device #{number}"));
        let device = device(gpu);
        lines.value("  Model", device.model, "");
        lines.value("  UUID", Some(device.uuid), "");
        lines.value("  Path", Some(&device.path), "");
        lines.value("  Family", device.family, "");
        lines.value("  Arch", device.arch, "");
        lines.value("  Cores", device.cores, "");
        lines.value("  Power", device.power, " W");
        let node = format!("NUMA node{}", device.cpu_affinity);
        lines.value("  CPU Affinity", Some(node), "");
        lines.plain("  PCI");
        lines.value("    Bus ID", Some(device.pci.busid), "");
        lines.value("    BAR1", device.pci.bar1, " MiB");
        lines.value("    Bandwidth", device.pci.bandwidth, " MB/s");
        lines.plain("  Memory");
        lines.value("    ECC", device.memory.ecc, "");
        lines.value("    Global", device.memory.global, " MiB");
        lines.value("    Constant", device.memory.constant, " KiB");
        lines.value("    Shared", device.memory.shared, " KiB");
        lines.value("    L2 Cache", device.memory.l2_cache, " KiB");
        lines.value("    Bandwidth", device.memory.bandwidth, " MB/s");
        lines.plain("  Clocks");
        lines.value("    Cores", device.clocks.cores, " MHz");
        lines.value("    Memory", device.clocks.memory, " MHz");
        match device.topology {
            None => lines.value("  P2P Available", Some("None"), ""),
            Some(peers) => {
                lines.plain("  P2P Available");
                for peer in peers {
                    lines.plain(&format!("    {} - {}", peer.busid, link_text(peer.link)));
                }
            }
        }
    }
    lines.plain("");
    Ok(lines.finish())
}

fn device(gpu: &GpuFacts) -> Device<'_> {
    let kib = |bytes: u32| bytes >> 10;
    let peers: Vec<Link<'_>> = gpu
        .peers
        .iter()
        .map(|peer| Link {
            busid: &peer.busid,
            link: link(peer.level),
        })
        .collect();
    Device {
        uuid: &gpu.uuid,
        path: format!("/dev/nvidia{}", gpu.minor),
        model: gpu.model.as_deref(),
        power: gpu.power_limit.map(|milliwatts| milliwatts / 1000),
        cpu_affinity: numa_node(&gpu.busid).unwrap_or_default(),
        pci: Pci {
            busid: &gpu.busid,
            bar1: gpu.bar1.map(|bytes| bytes >> 20),
            bandwidth: link_bandwidth(gpu),
        },
        clocks: Clocks {
            cores: gpu.core_clock,
            // Upstream does not query the second value if the first is missing.
            memory: gpu.core_clock.and(gpu.memory_clock),
        },
        topology: Some(peers).filter(|peers| !peers.is_empty()),
        family: gpu.arch.and_then(architecture),
        arch: gpu.arch.map(|(major, minor)| format!("{major}.{minor}")),
        cores: cores(gpu),
        memory: Memory {
            ecc: gpu.ecc,
            global: gpu.memory.map(|bytes| bytes >> 20),
            shared: gpu.shared_memory.map(kib),
            constant: gpu.constant_memory.map(kib),
            l2_cache: gpu.l2_cache.map(kib),
            bandwidth: memory_bandwidth(gpu),
        },
    }
}

/// Returns the number of cores: for the architectures of version 1.0 as that counted them, else as NVML does.
pub(super) fn cores(gpu: &GpuFacts) -> Option<u32> {
    let of_one = match gpu.arch? {
        (1, 0..=3) => 8,
        (2, 0) => 32,
        (2, 1) => 48,
        (3, 0 | 2 | 5 | 7) => 192,
        (5, 0 | 2 | 3) | (6, 1 | 2) => 128,
        (6, 0) => 64,
        _ => return gpu.cores,
    };
    Some(gpu.multiprocessors?.saturating_mul(of_one))
}

/// Returns the bandwidth of all PCIe lanes in MB/s.
pub(super) fn link_bandwidth(gpu: &GpuFacts) -> Option<u32> {
    let of_one: u32 = match gpu.link_generation? {
        1 => 250,
        2 => 500,
        3 => 985,
        4 => 1969,
        5 => 3938,
        6 => 7563,
        _ => return None,
    };
    Some(gpu.link_width?.saturating_mul(of_one))
}

/// Returns the memory bandwidth in MB/s, with two transfers per clock.
pub(super) fn memory_bandwidth(gpu: &GpuFacts) -> Option<u64> {
    let clock = u64::from(gpu.cuda_memory_clock? / 1000);
    Some(2 * clock * u64::from(gpu.bus_width? / 8))
}

/// Returns the NUMA node of a PCI device, if the machine has NUMA.
pub(super) fn numa_node(busid: &str) -> Option<u32> {
    let name = busid.to_ascii_lowercase();
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{name}/numa_node")).ok()?;
    text.trim().parse().ok()
}

/// Returns the number of a topology distance in version 1.0.
fn link(level: Option<i32>) -> u8 {
    match level {
        Some(0) => 6,
        Some(10) => 5,
        Some(20) => 4,
        Some(30) => 3,
        Some(40) => 2,
        Some(50) => 1,
        _ => 0,
    }
}

/// Returns the description of a topology distance.
fn link_text(link: u8) -> &'static str {
    match link {
        6 => "Same board",
        5 => "Single PCI switch",
        4 => "Multiple PCI switches",
        3 => "Host PCI bridge",
        2 => "Same CPU socket",
        1 => "Cross CPU socket",
        _ => "N/A",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_gpus_have_nvmls_number_of_cores() {
        let of = |arch, multiprocessors, cores| {
            let mut gpu = GpuFacts::default();
            gpu.arch = Some(arch);
            (gpu.multiprocessors, gpu.cores) = (multiprocessors, cores);
            super::cores(&gpu)
        };
        assert_eq!(of((6, 0), Some(56), Some(1)), Some(3584));
        assert_eq!(of((9, 0), Some(132), Some(16896)), Some(16896));
        assert_eq!(of((9, 0), Some(132), None), None);
    }
}
