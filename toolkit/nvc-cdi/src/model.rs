//! Defines a CDI specification, with the fields of version 1.1.0 in output order.

use nvc_oci::own_environment::STAGES_INSIDE;
use std::path::Path;

use indexmap::IndexMap;
use nvc_hostfile::HandedPaths;
use serde::{Deserialize, Serialize};

/// Directories that engines search for specifications; later ones have precedence.
pub const STANDARD_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The type of a character device.
pub const CHARACTER: &str = "c";

/// A specification: devices of one kind, and their common edits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The version of the format.
    pub cdi_version: String,
    /// `VENDOR/CLASS`.
    pub kind: String,
    /// Free notes; their keys follow Kubernetes' rules.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub annotations: IndexMap<String, String>,
    pub devices: Vec<Device>,
    /// Edits applied once for any of the devices.
    #[serde(skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
}

/// A device that a container can request by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    /// Its name within the kind.
    pub name: String,
    /// Free notes.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub annotations: IndexMap<String, String>,
    /// Edits that make the device available.
    pub container_edits: Edits,
}

/// Changes to a container's configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// `NAME=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes, which the container's cgroup also allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network devices to move into the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs to run while the container starts or ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Intel's cache and bandwidth allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Supplementary groups of the container's process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host, if different.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// `b`, `c`, `u` or `p`; empty for the host node's type.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Zero for the host node's number.
    #[serde(skip_serializing_if = "is_zero")]
    pub major: i64,
    /// Only with a major number.
    #[serde(skip_serializing_if = "is_zero")]
    pub minor: i64,
    /// Permission bits, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Access allowed by the cgroup, of `rwm`; empty means all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// A program that the engine's runtime starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hook {
    /// The stage, `createContainer` for instance.
    pub hook_name: String,
    /// The program.
    pub path: String,
    /// Its arguments, the first being its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Timeout in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mount {
    pub host_path: String,
    pub container_path: String,
    /// Options as in fstab.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// File system type; empty for a bind mount.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

impl Mount {
    /// Returns true if it binds a path of the host.
    pub(crate) fn is_bind(&self) -> bool {
        self.kind.is_empty() || self.kind == "bind"
    }

    /// Returns why a user other than root and the caller could exchange its source until it is mounted; None if nobody
    /// could.
    pub(crate) fn exposed(&self, paths: &mut HandedPaths) -> Option<String> {
        let found = paths.check(Path::new(&self.host_path));
        found
            .err()
            .filter(|_| self.is_bind())
            .map(|error| error.message())
    }
}

/// Intel's resource director.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(rename = "closID", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// Memory bandwidth schema.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Any schemata.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Cache monitoring, removed in version 1.1.0.
    #[serde(rename = "enableCMT", skip_serializing_if = "is_false")]
    pub enable_cmt: bool,
    /// Bandwidth monitoring, removed in version 1.1.0.
    #[serde(rename = "enableMBM", skip_serializing_if = "is_false")]
    pub enable_mbm: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub enable_monitoring: bool,
}

impl DeviceNode {
    /// Returns the path on the host.
    pub fn on_host(&self) -> &str {
        match self.host_path.as_str() {
            "" => &self.path,
            path => path,
        }
    }
}

impl Hook {
    /// Returns true if engines may start the program as root with the container's environment: it runs in the
    /// container's namespaces, and has none of its own.
    pub fn lacks_environment(&self) -> bool {
        self.env.is_empty() && STAGES_INSIDE.contains(&self.hook_name.as_str())
    }
}

impl Edits {
    /// Returns true if the edits change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Appends other edits.
    pub fn append(&mut self, other: &Self) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.net_devices.extend_from_slice(&other.net_devices);
        self.hooks.extend_from_slice(&other.hooks);
        self.mounts.extend_from_slice(&other.mounts);
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
        self.additional_gids
            .extend_from_slice(&other.additional_gids);
    }
}

impl Spec {
    /// Returns vendor and class; both are empty without a slash.
    pub fn vendor_and_class(&self) -> (&str, &str) {
        self.kind.split_once('/').unwrap_or(("", &self.kind))
    }

    /// Returns the device with a name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Returns the edits of each device, then the common ones.
    pub fn all_edits(&self) -> impl Iterator<Item = &Edits> {
        let devices = self.devices.iter().map(|device| &device.container_edits);
        devices.chain([&self.container_edits])
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(value: &i64) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_false(value: &bool) -> bool {
    !*value
}
