//! Formats the state of the GPUs in version 1.0: JSON and text.
//!
//! A failing GPU has no values; the others are unaffected.

use libnvc::host::monitor::{GpuFacts, GpuStatus, ProcessStatus};
use serde::Serialize;

use super::lines::Lines;
use crate::plugin::gpus::GpuState;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Status<'a> {
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Device<'a> {
    power: Option<u32>,
    temperature: Option<u32>,
    utilization: Utilization,
    memory: Memory,
    clocks: Clocks,
    #[serde(rename = "PCI")]
    pci: Pci,
    processes: Option<Vec<Process<'a>>>,
}

#[derive(Serialize)]
struct Utilization {
    #[serde(rename = "GPU")]
    gpu: Option<u32>,
    #[serde(rename = "Memory")]
    memory: Option<u32>,
    #[serde(rename = "Encoder")]
    encoder: Option<u32>,
    #[serde(rename = "Decoder")]
    decoder: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Memory {
    global_used: Option<u64>,
    #[serde(rename = "ECCErrors")]
    ecc_errors: EccErrors,
}

#[derive(Serialize)]
struct EccErrors {
    #[serde(rename = "L1Cache")]
    l1_cache: Option<u64>,
    #[serde(rename = "L2Cache")]
    l2_cache: Option<u64>,
    #[serde(rename = "Global")]
    global: Option<u64>,
    /// These two are not upstream's: of GPUs since Ampere, which lack the others.
    #[serde(rename = "SRAM", skip_serializing_if = "Option::is_none")]
    sram: Option<u64>,
    #[serde(rename = "DRAM", skip_serializing_if = "Option::is_none")]
    dram: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Clocks {
    cores: Option<u32>,
    memory: Option<u32>,
}

#[derive(Serialize)]
struct Pci {
    #[serde(rename = "BAR1Used")]
    bar1_used: Option<u64>,
    #[serde(rename = "Throughput")]
    throughput: Throughput,
}

#[derive(Serialize)]
#[serde(rename_all = "UPPERCASE")]
struct Throughput {
    rx: Option<u32>,
    tx: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Process<'a> {
    #[serde(rename = "PID")]
    pid: u32,
    name: Option<&'a str>,
    memory_used: Option<u64>,
}

/// Returns the JSON of /gpu/status/json.
pub(super) fn json(state: &GpuState) -> String {
    let nothing = GpuStatus::default();
    let devices = state.status.iter();
    super::answer::json(&Status {
        devices: devices
            .map(|status| device(status.as_ref().unwrap_or(&nothing)))
            .collect(),
    })
}

/// Returns the text of /gpu/status.
pub(super) fn text(state: &GpuState) -> String {
    let nothing = GpuStatus::default();
    let mut lines = Lines::default();
    lines.plain("");
    for (number, (gpu, status)) in state.facts.gpus.iter().zip(state.status.iter()).enumerate() {
        lines.plain(&format!("Device #{number}"));
        add_device(
            &mut lines,
            gpu,
            &device(status.as_ref().unwrap_or(&nothing)),
        );
        lines.plain("");
    }
    lines.finish()
}

fn add_device(lines: &mut Lines, gpu: &GpuFacts, device: &Device<'_>) {
    let of_total = |used: Option<u64>, total: Option<u64>| match (used, total) {
        (Some(used), Some(total)) => Some(format!("{used} / {total}")),
        _ => None,
    };
    let limit = gpu
        .power_limit
        .map(|milliwatts| u64::from(milliwatts / 1000));
    let power = of_total(device.power.map(u64::from), limit);
    lines.value("  Power", power, " W");
    lines.value("  Temperature", device.temperature, " °C");
    lines.plain("  Utilization");
    lines.value("    GPU", device.utilization.gpu, " %");
    lines.value("    Memory", device.utilization.memory, " %");
    lines.value("    Encoder", device.utilization.encoder, " %");
    lines.value("    Decoder", device.utilization.decoder, " %");
    lines.plain("  Memory");
    let memory = of_total(
        device.memory.global_used,
        gpu.memory.map(|bytes| bytes >> 20),
    );
    lines.value("    Global", memory, " MiB");
    lines.plain("    ECC Errors");
    let errors = &device.memory.ecc_errors;
    lines.value("      L1 Cache", errors.l1_cache, "");
    lines.value("      L2 Cache", errors.l2_cache, "");
    lines.value("      Global", errors.global, "");
    for (name, count) in [("SRAM", errors.sram), ("DRAM", errors.dram)] {
        if count.is_some() {
            lines.value(&format!("      {name}"), count, "");
        }
    }
    lines.plain("  PCI");
    let bar1 = of_total(device.pci.bar1_used, gpu.bar1.map(|bytes| bytes >> 20));
    lines.value("    BAR1", bar1, " MiB");
    lines.plain("    Throughput");
    lines.value("      RX", device.pci.throughput.rx, " MB/s");
    lines.value("      TX", device.pci.throughput.tx, " MB/s");
    lines.plain("  Clocks");
    lines.value("    Cores", device.clocks.cores, " MHz");
    lines.value("    Memory", device.clocks.memory, " MHz");
    match &device.processes {
        None => lines.value("  Processes", Some("None"), ""),
        Some(processes) => {
            lines.plain("  Processes");
            for process in processes {
                lines.value("    - PID", Some(process.pid), "");
                lines.value("      Name", process.name, "");
                lines.value("      Memory", process.memory_used, " MiB");
            }
        }
    }
}

fn device(status: &GpuStatus) -> Device<'_> {
    let mib = |bytes: u64| bytes >> 20;
    // Upstream does not query the rest of a group if its first value is missing.
    let ([l1_cache, l2_cache, global], [sram, dram]) = match status.ecc_errors {
        [None, _, dram] => (
            [None; 3],
            [status.sram_errors, status.sram_errors.and(dram)],
        ),
        errors => (errors, [None; 2]),
    };
    let processes: Vec<Process<'_>> = status.processes.iter().map(process).collect();
    Device {
        power: status.power.map(|milliwatts| milliwatts / 1000),
        temperature: status.temperature,
        utilization: Utilization {
            gpu: status.busy,
            memory: status.memory_busy,
            encoder: status.encoder,
            decoder: status.decoder,
        },
        memory: Memory {
            global_used: status.memory_used.map(mib),
            ecc_errors: EccErrors {
                l1_cache,
                l2_cache,
                global,
                sram,
                dram,
            },
        },
        clocks: Clocks {
            cores: status.core_clock,
            memory: status.core_clock.and(status.memory_clock),
        },
        pci: Pci {
            bar1_used: status.bar1_used.map(mib),
            throughput: Throughput {
                rx: status.received.map(|kilobytes| kilobytes / 1000),
                tx: status
                    .received
                    .and(status.sent)
                    .map(|kilobytes| kilobytes / 1000),
            },
        },
        processes: Some(processes).filter(|processes| !processes.is_empty()),
    }
}

fn process(process: &ProcessStatus) -> Process<'_> {
    Process {
        pid: process.pid,
        name: process.name.as_deref(),
        memory_used: process.memory.map(|bytes| bytes >> 20),
    }
}
