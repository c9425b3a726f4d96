//! Formats all data about the GPUs in one document, version 2: with names, units in the keys, and each GPU's error.

use libnvc::Result;
use libnvc::host::monitor::{GpuFacts, GpuStatus, MigFacts, ProcessStatus, architecture};
use serde_json::{Value, json};

use super::answer::json as line;
use super::containers::of_process;
use super::info::{link, link_bandwidth, numa_node};
use crate::VERSION;
use crate::plugin::gpus::GpuState;

/// Returns the document.
pub(super) fn document(state: &GpuState) -> String {
    let versions = &state.facts.versions;
    let pairs = state.facts.gpus.iter().zip(state.status.iter());
    line(&json!({
        "version": {
            "plugin": VERSION,
            "host": host_name(),
            "driver": versions.driver.as_deref().ok(),
            "cuda": versions.cuda.as_ref().ok().map(ToString::to_string),
        },
        "gpus": pairs.map(|(facts, status)| gpu(facts, status)).collect::<Vec<_>>(),
    }))
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim_end().to_owned())
}

fn gpu(facts: &GpuFacts, status: &Result<GpuStatus>) -> Value {
    let error = status.as_ref().err().map(|error| error.message());
    let peers = facts.peers.iter();
    let peers = peers.map(|peer| json!({ "busId": peer.busid, "distance": link(peer.level).2 }));
    let mig = facts.mig.iter().map(|mig| mig_device(mig, status));
    json!({
        "index": facts.index,
        "uuid": facts.uuid,
        "path": format!("/dev/nvidia{}", facts.minor),
        "model": facts.model,
        "busId": facts.busid,
        "numaNode": numa_node(&facts.busid),
        "architecture": facts.arch.and_then(architecture),
        "computeCapability": facts.arch.map(|(major, minor)| format!("{major}.{minor}")),
        "multiprocessors": facts.multiprocessors,
        "ecc": facts.ecc,
        "memoryBytes": facts.memory,
        "bar1Bytes": facts.bar1,
        "powerLimitMilliwatts": facts.power_limit,
        "maxClocksMegahertz": { "cores": facts.core_clock, "memory": facts.memory_clock },
        "pcie": {
            "generation": facts.link_generation,
            "width": facts.link_width,
            "megabytesPerSecond": link_bandwidth(facts),
        },
        "peers": peers.collect::<Vec<_>>(),
        // Null if the status is unknown; `error` has the reason.
        "status": status.as_ref().ok().map(doing_of),
        "error": error.or(facts.problems.first().cloned()),
        "migDevices": mig.collect::<Vec<_>>(),
    })
}

fn doing_of(status: &GpuStatus) -> Value {
    let [l1_cache, l2_cache, memory] = status.ecc_errors;
    json!({
        "powerMilliwatts": status.power,
        "temperatureCelsius": status.temperature,
        "utilizationPercent": {
            "gpu": status.busy,
            "memory": status.memory_busy,
            "encoder": status.encoder,
            "decoder": status.decoder,
        },
        "memoryUsedBytes": status.memory_used,
        "bar1UsedBytes": status.bar1_used,
        "clocksMegahertz": { "cores": status.core_clock, "memory": status.memory_clock },
        "uncorrectedErrors": { "l1Cache": l1_cache, "l2Cache": l2_cache, "memory": memory },
        "pcieKilobytesPerSecond": { "received": status.received, "sent": status.sent },
        "processes": status.processes.iter().map(process).collect::<Vec<_>>(),
    })
}

fn process(process: &ProcessStatus) -> Value {
    json!({
        "pid": process.pid,
        "name": process.name,
        "memoryBytes": process.memory,
        // Short id of the container that it belongs to.
        "container": of_process(process.pid),
    })
}

fn mig_device(facts: &MigFacts, status: &Result<GpuStatus>) -> Value {
    let status = status.as_ref().ok();
    let found = status.and_then(|status| status.mig.iter().find(|mig| mig.uuid == facts.uuid));
    json!({
        "index": facts.index,
        "uuid": facts.uuid,
        "name": facts.name,
        "gpuInstance": facts.gpu_instance,
        "computeInstance": facts.compute_instance,
        "memoryUsedBytes": found.and_then(|mig| mig.memory_used),
        "memoryBytes": found.and_then(|mig| mig.memory_total),
    })
}
