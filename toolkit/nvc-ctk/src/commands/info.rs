//! Prints this machine's driver, CDI specifications and engines.

use std::path::Path;

use libnvc::Result;
use nvc_cdi::{Registry, STANDARD_DIRECTORIES};

use crate::engine::{containerd, crio, docker};
use crate::logging::print;

pub(super) fn run() -> Result<()> {
    let mut text = format!("version: {}\n", env!("CARGO_PKG_VERSION"));
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = driver.as_deref().and_then(|text| text.lines().next());
    text += &format!("kernel driver: {}\n", driver.unwrap_or("not loaded"));
    let registry = Registry::load(&STANDARD_DIRECTORIES);
    for file in registry.files() {
        let (path, count) = (file.path.display(), file.spec.devices.len());
        text += &format!(
            "specification: {path} ({}, {count} devices)\n",
            file.spec.kind
        );
    }
    for problem in registry.problems() {
        let (path, error) = (problem.path.display(), problem.error.message());
        text += &format!("skipped: {path}: {error}\n");
    }
    for (engine, path) in [
        ("docker", docker::CONFIG),
        ("containerd", containerd::CONFIG),
        ("crio", crio::CONFIG),
    ] {
        let state = if Path::new(path).exists() {
            path
        } else {
            "not configured"
        };
        text += &format!("{engine}: {state}\n");
    }
    print(&text)
}
