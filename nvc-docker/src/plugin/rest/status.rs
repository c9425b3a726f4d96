//! Formats the state of the GPUs in version 1.0: JSON and text.
//!
//! A failing GPU has no values; the others are unaffected.

use libnvc::host::monitor::{GpuStatus, ProcessStatus};
use serde_json::{Value, json};

use super::lines::Lines;
use crate::plugin::gpus::GpuState;

/// The lines of a GPU. Values of totals are [`text`]'s.
const ROWS: [(&str, &str, &str); 13] = [
    ("  Power", "/OfTotal/Power", " W"),
    ("  Temperature", "/Temperature", " °C"),
    ("  Utilization", "", ""),
    ("    GPU", "/Utilization/GPU", " %"),
    ("    Memory", "/Utilization/Memory", " %"),
    ("    Encoder", "/Utilization/Encoder", " %"),
    ("    Decoder", "/Utilization/Decoder", " %"),
    ("  Memory", "", ""),
    ("    Global", "/OfTotal/Memory", " MiB"),
    ("    ECC Errors", "", ""),
    ("      L1 Cache", "/Memory/ECCErrors/L1Cache", ""),
    ("      L2 Cache", "/Memory/ECCErrors/L2Cache", ""),
    ("      Global", "/Memory/ECCErrors/Global", ""),
];
/// Counters that are not upstream's: of GPUs since Ampere, which lack the others.
const MORE_ERRORS: [(&str, &str); 2] = [
    ("SRAM", "/Memory/ECCErrors/SRAM"),
    ("DRAM", "/Memory/ECCErrors/DRAM"),
];
const MORE_ROWS: [(&str, &str, &str); 8] = [
    ("  PCI", "", ""),
    ("    BAR1", "/OfTotal/BAR1", " MiB"),
    ("    Throughput", "", ""),
    ("      RX", "/PCI/Throughput/RX", " MB/s"),
    ("      TX", "/PCI/Throughput/TX", " MB/s"),
    ("  Clocks", "", ""),
    ("    Cores", "/Clocks/Cores", " MHz"),
    ("    Memory", "/Clocks/Memory", " MHz"),
];
const PROCESS_ROWS: [(&str, &str, &str); 3] = [
    ("    - PID", "/PID", ""),
    ("      Name", "/Name", ""),
    ("      Memory", "/MemoryUsed", " MiB"),
];

/// Returns the JSON of /gpu/status/json.
pub(super) fn json(state: &GpuState) -> String {
    let nothing = GpuStatus::default();
    let devices = state.status.iter();
    let devices = devices.map(|status| device(status.as_ref().unwrap_or(&nothing)));
    super::answer::json(&json!({ "Devices": devices.collect::<Vec<_>>() }))
}

/// Returns the text of /gpu/status.
pub(super) fn text(state: &GpuState) -> String {
    let nothing = GpuStatus::default();
    let mut lines = Lines::default();
    lines.plain("");
    for (number, (gpu, status)) in state.facts.gpus.iter().zip(state.status.iter()).enumerate() {
        lines.plain(&format!("Device #{number}"));
        let mut device = device(status.as_ref().unwrap_or(&nothing));
        let of_total = |place: &str, total: Option<u64>| {
            let used = device.pointer(place).and_then(Value::as_u64);
            used.zip(total)
                .map(|(used, total)| format!("{used} / {total}"))
        };
        let limit = gpu.power_limit.map(|milliwatts| milliwatts / 1000);
        device["OfTotal"] = json!({
            "Power": of_total("/Power", limit.map(Into::into)),
            "Memory": of_total("/Memory/GlobalUsed", gpu.memory.map(|bytes| bytes >> 20)),
            "BAR1": of_total("/PCI/BAR1Used", gpu.bar1.map(|bytes| bytes >> 20)),
        });
        lines.table(&device, &ROWS);
        for (name, place) in MORE_ERRORS {
            if let Some(count) = device.pointer(place) {
                lines.value(&format!("      {name}"), Some(count), "");
            }
        }
        lines.table(&device, &MORE_ROWS);
        match device["Processes"].as_array() {
            None => lines.value("  Processes", Some("None"), ""),
            Some(processes) => {
                lines.plain("  Processes");
                for process in processes {
                    lines.table(process, &PROCESS_ROWS);
                }
            }
        }
        lines.plain("");
    }
    lines.finish()
}

fn device(status: &GpuStatus) -> Value {
    let mib = |bytes: u64| bytes >> 20;
    let megabytes = |kilobytes: u32| kilobytes / 1000;
    // Upstream does not query the rest of a group if its first value is missing.
    let ([l1_cache, l2_cache, global], [sram, dram]) = match status.ecc_errors {
        [None, _, dram] => (
            [None; 3],
            [status.sram_errors, status.sram_errors.and(dram)],
        ),
        errors => (errors, [None; 2]),
    };
    let mut errors = json!({ "L1Cache": l1_cache, "L2Cache": l2_cache, "Global": global });
    for (name, count) in [("SRAM", sram), ("DRAM", dram)] {
        if let Some(count) = count {
            errors[name] = count.into();
        }
    }
    let processes: Vec<_> = status.processes.iter().map(process).collect();
    json!({
        "Power": status.power.map(|milliwatts| milliwatts / 1000),
        "Temperature": status.temperature,
        "Utilization": {
            "GPU": status.busy,
            "Memory": status.memory_busy,
            "Encoder": status.encoder,
            "Decoder": status.decoder,
        },
        "Memory": { "GlobalUsed": status.memory_used.map(mib), "ECCErrors": errors },
        "Clocks": {
            "Cores": status.core_clock,
            "Memory": status.core_clock.and(status.memory_clock),
        },
        "PCI": {
            "BAR1Used": status.bar1_used.map(mib),
            "Throughput": {
                "RX": status.received.map(megabytes),
                "TX": status.received.and(status.sent).map(megabytes),
            },
        },
        "Processes": Some(processes).filter(|processes| !processes.is_empty()),
    })
}

fn process(process: &ProcessStatus) -> Value {
    json!({
        "PID": process.pid,
        "Name": process.name,
        "MemoryUsed": process.memory.map(|bytes| bytes >> 20),
    })
}
