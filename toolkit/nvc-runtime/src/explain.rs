//! Says in the debug log what a container gets, and why: support must be able to tell why something is missing.

use std::path::Path;

use libnvc::host::{DeviceNode, DriverFile, FileClass};
use libnvc::survey::Host;
use nvc_cdi::Edits;
use nvc_program::messages::Level;

use crate::log::Log;

/// Where edits come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// The driver and the chosen devices, if NVML was queried.
    pub(crate) host: Option<&'a Host>,
    /// The reason for everything that is not of the driver or of one of the devices.
    pub(crate) reason: &'a str,
    /// The request for the devices.
    pub(crate) request: &'a str,
}

/// Writes a line for each node, file, hook, variable and group.
pub(crate) fn edits(log: &mut Log, edits: &Edits, source: &Source<'_>) {
    if !log.has_steps() {
        return;
    }
    let mut say = |what: String| log.write(Level::Debug, &what);
    for node in &edits.device_nodes {
        let why = source.of_node(Path::new(node.on_host()));
        say(format!(
            "adding node {}{}: {why}",
            node.path,
            from(&node.host_path, &node.path)
        ));
    }
    for mount in &edits.mounts {
        let why = source.of_file(Path::new(&mount.host_path));
        let from = from(&mount.host_path, &mount.container_path);
        say(format!("adding file {}{from}: {why}", mount.container_path));
    }
    for hook in &edits.hooks {
        let words = hook.args.get(1..).unwrap_or_default().join(" ");
        let (stage, path) = (&hook.hook_name, &hook.path);
        say(format!(
            "adding {stage} hook {path} {words}: {}",
            source.reason
        ));
    }
    for variable in &edits.env {
        say(format!("adding variable {variable}: {}", source.reason));
    }
    for group in &edits.additional_gids {
        say(format!(
            "adding group {group}: owner of a node that others may not open"
        ));
    }
}

/// Returns the place on the host, if it is another.
fn from(host_path: &str, path: &str) -> String {
    if host_path.is_empty() || host_path == path {
        String::new()
    } else {
        format!(" (from {host_path})")
    }
}

impl Source<'_> {
    fn of_node(&self, path: &Path) -> String {
        let found = self.host.and_then(|host| whose(host, path));
        match found {
            Some((what, true)) => format!("{what}, requested as {}", self.request),
            Some((what, false)) => what,
            None => self.reason.to_owned(),
        }
    }

    fn of_file(&self, path: &Path) -> String {
        let file = self.host.and_then(|host| {
            let mut all = host.driver.files.iter().chain(&host.driver.graphics);
            all.find(|file| file.path.below(&host.root) == path)
        });
        match file {
            Some(file) => described(file),
            None => self.reason.to_owned(),
        }
    }
}

/// Returns what a node of the host is, and whether it was requested.
fn whose(host: &Host, path: &Path) -> Option<(String, bool)> {
    let is_it = |node: &DeviceNode| node.path.below(&host.root) == path;
    if host.driver.devices.iter().any(|shared| is_it(&shared.node)) {
        return Some(("the driver's, for every GPU".into(), false));
    }
    for mig in &host.chosen.migs {
        let name = format!(
            "MIG device {}:{} ({})",
            mig.parent.index, mig.device.index, mig.device.uuid
        );
        let mut access = mig.access.iter().filter_map(|access| access.node.as_ref());
        if access.any(is_it) {
            return Some((format!("the capability of {name}"), true));
        }
        if mig.parent.node.as_ref().is_some_and(is_it) {
            return Some((format!("the GPU of {name}"), true));
        }
    }
    for gpu in &host.chosen.gpus {
        let name = format!("GPU {} ({})", gpu.index, gpu.uuid);
        if gpu.node.as_ref().is_some_and(is_it) {
            return Some((name, true));
        }
        if gpu.drm_nodes.iter().any(is_it) {
            return Some((format!("display node of {name}"), true));
        }
    }
    None
}

fn described(file: &DriverFile) -> String {
    let class = match file.class {
        FileClass::Library => "library",
        FileClass::XModule => "module of the X server",
        FileClass::Program => "program",
        FileClass::Firmware => "firmware",
        FileClass::Socket => "socket of a service",
        FileClass::Config | FileClass::Data | FileClass::DeviceDir => "file",
    };
    match file.capability {
        Some(capability) => format!("{class} of the driver, capability {capability}"),
        None => format!("{class} of the driver, for every capability"),
    }
}
