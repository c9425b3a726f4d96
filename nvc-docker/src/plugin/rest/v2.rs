//! Formats all data about the GPUs in one document, version 2: with names, units in the keys, and each GPU's error.

use libnvc::Result;
use libnvc::host::monitor::{GpuFacts, GpuStatus, MigFacts, ProcessStatus};
use serde::Serialize;

use super::answer::json as line;
use super::containers::of_process;
use super::info::{link_bandwidth, numa_node};
use super::v2_types::{architecture, distance};
use crate::VERSION;
use crate::plugin::gpus::GpuState;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    version: Version<'a>,
    gpus: Vec<Gpu<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version<'a> {
    plugin: &'static str,
    /// This machine's name.
    host: Option<String>,
    driver: Option<&'a str>,
    cuda: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Gpu<'a> {
    index: u32,
    uuid: &'a str,
    path: String,
    model: Option<&'a str>,
    bus_id: &'a str,
    numa_node: Option<u32>,
    architecture: Option<&'static str>,
    compute_capability: Option<String>,
    multiprocessors: Option<u32>,
    ecc: Option<bool>,
    memory_bytes: Option<u64>,
    bar1_bytes: Option<u64>,
    power_limit_milliwatts: Option<u32>,
    max_clocks_megahertz: Clocks,
    pcie: Pcie,
    peers: Vec<Peer<'a>>,
    /// None if the status is unknown; `error` has the reason.
    status: Option<Status<'a>>,
    error: Option<String>,
    mig_devices: Vec<MigDevice<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Clocks {
    cores: Option<u32>,
    memory: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pcie {
    generation: Option<u32>,
    width: Option<u32>,
    megabytes_per_second: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Peer<'a> {
    bus_id: &'a str,
    distance: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    power_milliwatts: Option<u32>,
    temperature_celsius: Option<u32>,
    utilization_percent: Utilization,
    memory_used_bytes: Option<u64>,
    bar1_used_bytes: Option<u64>,
    clocks_megahertz: Clocks,
    uncorrected_errors: Errors,
    pcie_kilobytes_per_second: Traffic,
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Utilization {
    gpu: Option<u32>,
    memory: Option<u32>,
    encoder: Option<u32>,
    decoder: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Errors {
    l1_cache: Option<u64>,
    l2_cache: Option<u64>,
    memory: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Traffic {
    received: Option<u32>,
    sent: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Process<'a> {
    pid: u32,
    name: Option<&'a str>,
    memory_bytes: Option<u64>,
    /// Short id of the container that it belongs to.
    container: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MigDevice<'a> {
    index: u32,
    uuid: &'a str,
    name: Option<&'a str>,
    gpu_instance: u32,
    compute_instance: u32,
    memory_used_bytes: Option<u64>,
    memory_bytes: Option<u64>,
}

/// Returns the document.
pub(super) fn document(state: &GpuState) -> String {
    let versions = &state.facts.versions;
    let pairs = state.facts.gpus.iter().zip(state.status.iter());
    line(&Document {
        version: Version {
            plugin: VERSION,
            host: host_name(),
            driver: versions.driver.as_deref().ok(),
            cuda: versions.cuda.as_ref().ok().map(ToString::to_string),
        },
        gpus: pairs.map(|(facts, status)| gpu(facts, status)).collect(),
    })
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim_end().to_owned())
}

fn gpu<'a>(facts: &'a GpuFacts, status: &'a Result<GpuStatus>) -> Gpu<'a> {
    let error = status.as_ref().err().map(|error| error.message());
    let problem = facts.problems.first().cloned();
    Gpu {
        index: facts.index,
        uuid: &facts.uuid,
        path: format!("/dev/nvidia{}", facts.minor),
        model: facts.model.as_deref(),
        bus_id: &facts.busid,
        numa_node: numa_node(&facts.busid),
        architecture: facts.arch.and_then(architecture),
        compute_capability: facts.arch.map(|(major, minor)| format!("{major}.{minor}")),
        multiprocessors: facts.multiprocessors,
        ecc: facts.ecc,
        memory_bytes: facts.memory,
        bar1_bytes: facts.bar1,
        power_limit_milliwatts: facts.power_limit,
        max_clocks_megahertz: Clocks {
            cores: facts.core_clock,
            memory: facts.memory_clock,
        },
        pcie: Pcie {
            generation: facts.link_generation,
            width: facts.link_width,
            megabytes_per_second: link_bandwidth(facts),
        },
        peers: facts
            .peers
            .iter()
            .map(|peer| Peer {
                bus_id: &peer.busid,
                distance: distance(peer.level),
            })
            .collect(),
        status: status.as_ref().ok().map(|status| doing_of(status)),
        error: error.or(problem),
        mig_devices: facts
            .mig
            .iter()
            .map(|mig| mig_device(mig, status))
            .collect(),
    }
}

fn doing_of(status: &GpuStatus) -> Status<'_> {
    let [l1_cache, l2_cache, memory] = status.ecc_errors;
    Status {
        power_milliwatts: status.power,
        temperature_celsius: status.temperature,
        utilization_percent: Utilization {
            gpu: status.busy,
            memory: status.memory_busy,
            encoder: status.encoder,
            decoder: status.decoder,
        },
        memory_used_bytes: status.memory_used,
        bar1_used_bytes: status.bar1_used,
        clocks_megahertz: Clocks {
            cores: status.core_clock,
            memory: status.memory_clock,
        },
        uncorrected_errors: Errors {
            l1_cache,
            l2_cache,
            memory,
        },
        pcie_kilobytes_per_second: Traffic {
            received: status.received,
            sent: status.sent,
        },
        processes: status.processes.iter().map(process).collect(),
    }
}

fn process(process: &ProcessStatus) -> Process<'_> {
    Process {
        pid: process.pid,
        name: process.name.as_deref(),
        memory_bytes: process.memory,
        container: of_process(process.pid),
    }
}

fn mig_device<'a>(facts: &'a MigFacts, status: &Result<GpuStatus>) -> MigDevice<'a> {
    let status = status.as_ref().ok();
    let found = status.and_then(|status| status.mig.iter().find(|mig| mig.uuid == facts.uuid));
    MigDevice {
        index: facts.index,
        uuid: &facts.uuid,
        name: facts.name.as_deref(),
        gpu_instance: facts.gpu_instance,
        compute_instance: facts.compute_instance,
        memory_used_bytes: found.and_then(|mig| mig.memory_used),
        memory_bytes: found.and_then(|mig| mig.memory_total),
    }
}
