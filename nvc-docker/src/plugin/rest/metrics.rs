//! Formats the state of the GPUs for Prometheus.

use std::fmt::Write as _;

use libnvc::host::monitor::{GpuFacts, GpuStatus};

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
        let values: Vec<(String, f64)> = gpus()
            .filter_map(|(facts, status)| {
                let value = reading(facts, status.as_ref().ok()?)?;
                Some((labels(facts), value))
            })
            .collect();
        if !values.is_empty() {
            heading(text, name, help, kind)?;
        }
        for (labels, value) in values {
            writeln!(text, "{name}{{{labels}}} {value}")?;
        }
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
