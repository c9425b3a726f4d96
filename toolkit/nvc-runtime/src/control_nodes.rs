//! Loads the driver's modules and creates its control nodes in mode jit-cdi, as legacy mode does (`load-kmods`).
//!
//! On a machine where no program has used the driver since boot, nvidia-uvm is missing, and CUDA would fail in the
//! container with an error that does not say why.

use std::path::Path;

use libnvc::host::{DeviceRole, DriverConfig, is_wsl};
use libnvc::kmods;
use libnvc::options::LibraryOptions;
use nvc_policy::config::Config;

const CONTROL: &str = DeviceRole::Control.path();
const UVM: &str = DeviceRole::Uvm.path();

const ALL: [&str; 4] = [
    CONTROL,
    UVM,
    DeviceRole::UvmTools.path(),
    DeviceRole::Modeset.path(),
];

/// The nodes without which nothing can compute, and what fails.
const NEEDED: [(&str, &str); 2] = [
    (
        CONTROL,
        "nvidia-smi and CUDA will find no driver in the container",
    ),
    (
        UVM,
        "CUDA will fail in the container with error 999 (unknown error)",
    ),
];

const REPAIR: &str =
    "nvidia-ctk system create-device-nodes --load-kernel-modules --control-devices";

/// Creates missing nodes if the configuration asks for it. Returns warnings: about the nodes that are needed to compute,
/// what fails and how to repair it.
pub(crate) fn create(config: &Config) -> Vec<String> {
    let cli = &config.cli;
    let root = config.driver_root();
    // WSL has no such nodes.
    if !cli.load_kmods || missing(root, &ALL).is_empty() || is_wsl() {
        return Vec::new();
    }
    let problem = kmods::prepare(&DriverConfig {
        root: root.to_owned(),
        options: LibraryOptions::LOAD_KMODS,
        ..DriverConfig::default()
    });
    let needed = missing(root, &NEEDED.map(|(node, _)| node));
    // A machine may well lack nvidia-modeset: that is no news at each start.
    if needed.is_empty() {
        return Vec::new();
    }
    let forbidden = "ModifyDeviceFiles in /proc/driver/nvidia/params may forbid it";
    let problem = problem.unwrap_or_else(|| forbidden.into());
    let mut repair = REPAIR.to_owned();
    if root != Path::new("/") {
        repair.push_str(&format!(" --root={}", root.display()));
    }
    let failing = NEEDED.iter().filter(|(node, _)| needed.contains(node));
    let warnings = failing.map(|(node, what)| {
        format!("cannot create {node} ({problem}): {what}; to repair it, run on the host: {repair}")
    });
    warnings.collect()
}

/// Returns the nodes that the driver root lacks.
fn missing<'n>(root: &Path, nodes: &[&'n str]) -> Vec<&'n str> {
    let exists = |node: &str| root.join(node.trim_start_matches('/')).symlink_metadata();
    let nodes = nodes.iter().copied();
    nodes.filter(|node| exists(node).is_err()).collect()
}
