//! Formats the state of the GPUs for Prometheus.

use std::fmt::Write as _;

use libnvc::host::monitor::{GpuFacts, GpuStatus, MigFacts, MigStatus};

use crate::VERSION;
use crate::plugin::gpus::GpuState;

/// Content type of Prometheus' text format.
pub(super) const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A value of a GPU.
type Reading = fn(&GpuFacts, &GpuStatus) -> Option<f64>;

/// Name, description, type, reading.
const METRICS: &[(&str, &str, &str, Reading)] = &[
    ("nvidia_gpu_power_watts", "Power drawn.", "gauge", |_, s| {
        Some(f64::from(s.power?) / 1000.0)
    }),
    (
        "nvidia_gpu_power_limit_watts",
        "Power limit.",
        "gauge",
        |f, _| Some(f64::from(f.power_limit?) / 1000.0),
    ),
    (
        "nvidia_gpu_temperature_celsius",
        "Temperature.",
        "gauge",
        |_, s| s.temperature.map(f64::from),
    ),
    (
        "nvidia_gpu_utilization_ratio",
        "Utilisation of the GPU.",
        "gauge",
        |_, s| ratio(s.busy),
    ),
    (
        "nvidia_gpu_memory_utilization_ratio",
        "Utilisation of the memory.",
        "gauge",
        |_, s| ratio(s.memory_busy),
    ),
    (
        "nvidia_gpu_encoder_utilization_ratio",
        "Utilisation of the video encoder.",
        "gauge",
        |_, s| ratio(s.encoder),
    ),
    (
        "nvidia_gpu_decoder_utilization_ratio",
        "Utilisation of the video decoder.",
        "gauge",
        |_, s| ratio(s.decoder),
    ),
    (
        "nvidia_gpu_memory_used_bytes",
        "Memory in use.",
        "gauge",
        |_, s| s.memory_used.map(number),
    ),
    (
        "nvidia_gpu_memory_total_bytes",
        "Memory.",
        "gauge",
        |f, s| f.memory.or(s.memory_total).map(number),
    ),
    (
        "nvidia_gpu_core_clock_hertz",
        "Clock of the multiprocessors.",
        "gauge",
        |_, s| s.core_clock.map(|clock| f64::from(clock) * 1e6),
    ),
    (
        "nvidia_gpu_memory_clock_hertz",
        "Clock of the memory.",
        "gauge",
        |_, s| s.memory_clock.map(|clock| f64::from(clock) * 1e6),
    ),
    (
        "nvidia_gpu_pcie_received_bytes_per_second",
        "PCIe traffic to the GPU.",
        "gauge",
        |_, s| s.received.map(|rate| f64::from(rate) * 1000.0),
    ),
    (
        "nvidia_gpu_pcie_sent_bytes_per_second",
        "PCIe traffic from the GPU.",
        "gauge",
        |_, s| s.sent.map(|rate| f64::from(rate) * 1000.0),
    ),
    (
        "nvidia_gpu_memory_errors_total",
        "Errors of the memory that could not be corrected, since the driver was loaded.",
        "counter",
        |_, s| s.ecc_errors.last().copied().flatten().map(number),
    ),
    (
        "nvidia_gpu_processes",
        "Processes that compute on the GPU.",
        "gauge",
        |_, s| u32::try_from(s.processes.len()).ok().map(f64::from),
    ),
];

/// Name, description and reading of a MIG device's values, which are gauges.
type MigReading = fn(&MigStatus) -> Option<u64>;
const MIG_METRICS: [(&str, &str, MigReading); 2] = [
    (
        "nvidia_mig_memory_used_bytes",
        "Memory of a MIG device in use.",
        |mig| mig.memory_used,
    ),
    (
        "nvidia_mig_memory_total_bytes",
        "Memory of a MIG device.",
        |mig| mig.memory_total,
    ),
];

/// Returns the whole text.
pub(super) fn text(state: &GpuState) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = build(&mut text, state);
    text
}

fn build(text: &mut String, state: &GpuState) -> std::fmt::Result {
    let versions = &state.facts.versions;
    heading(text, "nvidia_driver_info", "Versions.", "gauge")?;
    let driver = versions.driver.as_deref().unwrap_or_default();
    let cuda = versions.cuda.as_ref().map(ToString::to_string);
    writeln!(
        text,
        "nvidia_driver_info{{driver=\"{}\",cuda=\"{}\",plugin=\"{VERSION}\"}} 1",
        escaped(driver),
        escaped(&cuda.unwrap_or_default())
    )?;
    let gpus = || state.facts.gpus.iter().zip(state.status.iter());
    heading(text, "nvidia_gpu_up", "Whether the GPU answers.", "gauge")?;
    for (facts, status) in gpus() {
        let up = u8::from(status.is_ok());
        writeln!(text, "nvidia_gpu_up{{{}}} {up}", labels(facts))?;
    }
    for (name, help, kind, reading) in METRICS {
        let values = gpus().filter_map(|(facts, status)| {
            let value = reading(facts, status.as_ref().ok()?)?;
            Some((labels(facts), value))
        });
        metric(text, name, help, kind, values)?;
    }
    for (name, help, reading) in MIG_METRICS {
        let values = gpus().flat_map(|(facts, status)| {
            let of_mig = move |mig: &MigFacts| {
                let all = &status.as_ref().ok()?.mig;
                let status = all.iter().find(|status| status.uuid == mig.uuid)?;
                Some((mig_labels(facts, mig), number(reading(status)?)))
            };
            facts.mig.iter().filter_map(of_mig)
        });
        metric(text, name, help, "gauge", values)?;
    }
    Ok(())
}

/// Writes a metric with its values, by their labels; nothing if there are none.
fn metric(
    text: &mut String,
    name: &str,
    help: &str,
    kind: &str,
    values: impl Iterator<Item = (String, f64)>,
) -> std::fmt::Result {
    for (place, (labels, value)) in values.enumerate() {
        if place == 0 {
            heading(text, name, help, kind)?;
        }
        writeln!(text, "{name}{{{labels}}} {value}")?;
    }
    Ok(())
}

fn heading(text: &mut String, name: &str, help: &str, kind: &str) -> std::fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn labels(facts: &GpuFacts) -> String {
    format!(
        "gpu=\"{}\",uuid=\"{}\",model=\"{}\"",
        facts.index,
        escaped(&facts.uuid),
        escaped(facts.model.as_deref().unwrap_or_default())
    )
}

fn mig_labels(gpu: &GpuFacts, mig: &MigFacts) -> String {
    format!(
        "gpu=\"{}\",mig=\"{}\",uuid=\"{}\",profile=\"{}\"",
        gpu.index,
        mig.index,
        escaped(&mig.uuid),
        escaped(mig.name.as_deref().unwrap_or_default())
    )
}

fn escaped(text: &str) -> String {
    text.replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

fn ratio(percent: Option<u32>) -> Option<f64> {
    percent.map(|percent| f64::from(percent) / 100.0)
}

/// Converts a number; exact up to 2^53, which is more bytes than any GPU has.
#[allow(clippy::cast_precision_loss)]
fn number(value: u64) -> f64 {
    value as f64
}
