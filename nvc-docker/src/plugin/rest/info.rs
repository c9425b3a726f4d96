//! Formats the facts about GPUs in version 1.0: JSON and text.

use std::fs;

use libnvc::Result;
use libnvc::host::monitor::{GpuFacts, architecture};
use serde_json::{Value, json};

use super::lines::Lines;
use crate::plugin::gpus::DriverFacts;

/// The lines of a GPU.
const ROWS: [(&str, &str, &str); 22] = [
    ("  Model", "/Model", ""),
    ("  UUID", "/UUID", ""),
    ("  Path", "/Path", ""),
    ("  Family", "/Family", ""),
    ("  Arch", "/Arch", ""),
    ("  Cores", "/Cores", ""),
    ("  Power", "/Power", " W"),
    ("  CPU Affinity", "/Node", ""),
    ("  PCI", "", ""),
    ("    Bus ID", "/PCI/BusID", ""),
    ("    BAR1", "/PCI/BAR1", " MiB"),
    ("    Bandwidth", "/PCI/Bandwidth", " MB/s"),
    ("  Memory", "", ""),
    ("    ECC", "/Memory/ECC", ""),
    ("    Global", "/Memory/Global", " MiB"),
    ("    Constant", "/Memory/Constant", " KiB"),
    ("    Shared", "/Memory/Shared", " KiB"),
    ("    L2 Cache", "/Memory/L2Cache", " KiB"),
    ("    Bandwidth", "/Memory/Bandwidth", " MB/s"),
    ("  Clocks", "", ""),
    ("    Cores", "/Clocks/Cores", " MHz"),
    ("    Memory", "/Clocks/Memory", " MHz"),
];

/// Returns the JSON of /gpu/info/json.
///
/// # Errors
/// If the versions are unknown: NVML's or CUDA's message.
pub(super) fn json(facts: &DriverFacts) -> Result<String> {
    let versions = &facts.versions;
    Ok(super::answer::json(&json!({
        "Version": { "Driver": versions.driver.clone()?, "CUDA": versions.cuda.clone()?.to_string() },
        "Devices": facts.gpus.iter().map(device).collect::<Vec<_>>(),
    })))
}

/// Returns the text of /gpu/info.
///
/// # Errors
/// If the versions are unknown.
pub(super) fn text(facts: &DriverFacts) -> Result<String> {
    let versions = &facts.versions;
    let mut lines = Lines::default();
    lines.plain("");
    lines.value("Driver version", Some(versions.driver.clone()?), "");
    lines.value("Supported CUDA version", Some(versions.cuda.clone()?), "");
    for (number, gpu) in facts.gpus.iter().enumerate() {
        lines.plain("");
        lines.plain(&format!("Device #{number}"));
        let mut device = device(gpu);
        device["Node"] = json!(format!("NUMA node{}", device["CPUAffinity"]));
        lines.table(&device, &ROWS);
        if gpu.peers.is_empty() {
            lines.value("  P2P Available", Some("None"), "");
        } else {
            lines.plain("  P2P Available");
        }
        for peer in &gpu.peers {
            let (_, link, _) = link(peer.level);
            lines.plain(&format!("    {} - {link}", peer.busid));
        }
    }
    lines.plain("");
    Ok(lines.finish())
}

fn device(gpu: &GpuFacts) -> Value {
    let kib = |bytes: u32| bytes >> 10;
    let peers = gpu.peers.iter();
    let peers = peers.map(|peer| json!({ "BusID": peer.busid, "Link": link(peer.level).0 }));
    let peers: Vec<_> = peers.collect();
    json!({
        "UUID": gpu.uuid,
        "Path": format!("/dev/nvidia{}", gpu.minor),
        "Model": gpu.model,
        "Power": gpu.power_limit.map(|milliwatts| milliwatts / 1000),
        "CPUAffinity": numa_node(&gpu.busid).unwrap_or_default(),
        "PCI": {
            "BusID": gpu.busid,
            "BAR1": gpu.bar1.map(|bytes| bytes >> 20),
            "Bandwidth": link_bandwidth(gpu),
        },
        "Clocks": {
            "Cores": gpu.core_clock,
            // Upstream does not query the second value if the first is missing.
            "Memory": gpu.core_clock.and(gpu.memory_clock),
        },
        "Topology": Some(peers).filter(|peers| !peers.is_empty()),
        "Family": gpu.arch.and_then(architecture),
        "Arch": gpu.arch.map(|(major, minor)| format!("{major}.{minor}")),
        "Cores": cores(gpu),
        "Memory": {
            "ECC": gpu.ecc,
            "Global": gpu.memory.map(|bytes| bytes >> 20),
            "Shared": gpu.shared_memory.map(kib),
            "Constant": gpu.constant_memory.map(kib),
            "L2Cache": gpu.l2_cache.map(kib),
            "Bandwidth": memory_bandwidth(gpu),
        },
    })
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

/// Returns a topology distance between two GPUs: its number and its words in version 1.0, and its name in version 2.
pub(super) fn link(level: Option<i32>) -> (u8, &'static str, Option<&'static str>) {
    match level {
        Some(0) => (6, "Same board", Some("same board")),
        Some(10) => (5, "Single PCI switch", Some("one PCIe switch")),
        Some(20) => (4, "Multiple PCI switches", Some("several PCIe switches")),
        Some(30) => (3, "Host PCI bridge", Some("host bridge")),
        Some(40) => (2, "Same CPU socket", Some("same CPU")),
        Some(50) => (1, "Cross CPU socket", Some("across CPUs")),
        _ => (0, "N/A", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(link(Some(30)), (3, "Host PCI bridge", Some("host bridge")));
        assert_eq!(link(Some(31)), link(None));
    }

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
