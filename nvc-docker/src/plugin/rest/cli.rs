//! Formats the options that give a container GPUs: docker's, as text and JSON, and those of Mesos.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libnvc::{Error, ErrorKind, Result};
use serde::Serialize;

use super::answer::json as json_line;
use super::query::list;
use crate::VOLUME_DRIVER;
use crate::device_id::choose;
use crate::device_nodes;
use crate::driver_volume::{self, VOLUME};
use crate::plugin::gpus::{DriverFacts, candidates};

/// Docker's options.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Options {
    volume_driver: &'static str,
    volumes: Vec<String>,
    devices: Vec<String>,
}

impl Options {
    /// Returns the options for a query.
    ///
    /// # Errors
    /// `invalid device: <id>`, `invalid device node: <path>`, `invalid volume: <name>`, NVML's words.
    pub(super) fn new(facts: &DriverFacts, query: &str) -> Result<Self> {
        let gpus = candidates(&facts.gpus);
        let ids = list(query, "dev").unwrap_or_default();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let chosen = choose(&ids, &gpus)?;
        let devices = device_nodes::of_gpus(chosen.iter().map(|gpu| gpu.minor))?;
        let names = list(query, "vol").unwrap_or_else(|| vec![VOLUME.to_owned()]);
        if let Some(bad) = names.iter().find(|name| *name != VOLUME) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("invalid volume: {bad}"),
            ));
        }
        let driver = facts.versions.driver.clone()?;
        Ok(Self {
            volume_driver: VOLUME_DRIVER,
            volumes: names.iter().map(|_| driver_volume::bind(&driver)).collect(),
            devices,
        })
    }

    /// Formats them as JSON.
    pub(super) fn json(&self) -> String {
        json_line(self)
    }

    /// Formats them as words on one line, without a newline.
    pub(super) fn text(&self) -> String {
        let driver = format!("--volume-driver={}", self.volume_driver);
        let volumes = self.volumes.iter().map(|bind| format!("--volume={bind}"));
        let devices = self.devices.iter().map(|path| format!("--device={path}"));
        let words: Vec<String> = std::iter::once(driver)
            .chain(volumes)
            .chain(devices)
            .collect();
        words.join(" ")
    }
}

/// Returns the options of a Mesos agent.
///
/// # Errors
/// If the versions are unknown.
pub(super) fn mesos(facts: &DriverFacts) -> Result<String> {
    let packed =
        miniz_oxide::deflate::compress_to_vec_zlib(super::info::json(facts)?.as_bytes(), 9);
    let uuids: Vec<&str> = facts.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    Ok(format!(
        "--attributes=gpus:{} --resources=gpus:{{{}}}",
        URL_SAFE_NO_PAD.encode(&packed),
        uuids.join(",")
    ))
}
