//! Applies edits to config.json, and works around runtimes' limits with device nodes in user namespaces.
//!
//! mknod is not permitted there, so low-level runtimes bind the host's node of the same path instead. For a node that
//! is not in the host's /dev this would be another device or fail, so it becomes an explicit bind mount with a device
//! rule.

use libnvc::host::CharDrivers;
use libnvc::kmods::in_user_namespace;
use nvc_cdi::edits::{self, Host};
use nvc_cdi::nodes;
use nvc_cdi::{DeviceNode, Edits, Mount};
use nvc_oci::spec::Spec;
use serde_json::Value;

use crate::error::Result;
use crate::job::Job;
use crate::volumes;

/// The options with which runtimes bind nodes.
const OPTIONS: [&str; 4] = ["rbind", "rprivate", "nosuid", "noexec"];

/// Applies the edits to a container.
pub(crate) fn apply(job: &mut Job<'_>, all: &mut [Edits]) -> Result<()> {
    // A foreign program does not know such mounts.
    let program = job.hooks.ours();
    let bundle = &job.place.bundle;
    let spared = volumes::spare(job.spec.value(), bundle, all, program.as_ref())?;
    for warning in &spared.warnings {
        job.warn(warning);
    }
    put(job.spec, all, spared.nodes)
}

/// Puts them into config.json, and the rules of further nodes.
fn put(spec: &mut Spec, all: &mut [Edits], nodes: Vec<DeviceNode>) -> Result<()> {
    let drivers = CharDrivers::discover();
    let host = Host {
        look_up: nodes::look_up,
        drivers: &drivers,
    };
    let mut bound = nodes;
    if has_user_namespace(spec.value()) || in_user_namespace() {
        for part in all.iter_mut() {
            bound.extend(bind(part));
        }
    }
    edits::apply(spec, all, host)?;
    for node in bound {
        allow(spec, &node, host)?;
    }
    Ok(())
}

/// Converts nodes with another path on the host to mounts; returns those nodes.
fn bind(part: &mut Edits) -> Vec<DeviceNode> {
    let is_elsewhere =
        |node: &DeviceNode| !node.host_path.is_empty() && node.host_path != node.path;
    let (elsewhere, others): (Vec<_>, Vec<_>) = std::mem::take(&mut part.device_nodes)
        .into_iter()
        .partition(is_elsewhere);
    part.device_nodes = others;
    part.mounts.extend(elsewhere.iter().map(|node| Mount {
        host_path: node.host_path.clone(),
        container_path: node.path.clone(),
        options: OPTIONS.map(String::from).to_vec(),
        kind: String::new(),
    }));
    elsewhere
}

/// Adds the device rule of a node, unless it exists.
fn allow(spec: &mut Spec, node: &DeviceNode, host: Host<'_>) -> Result<()> {
    let rules = spec.list(&["linux", "resources", "devices"])?;
    if let Some(rule) = edits::device_rule(node, host)?
        && !rules.contains(&rule)
    {
        rules.push(rule);
    }
    Ok(())
}

/// Returns true if the container creates or joins a user namespace.
fn has_user_namespace(spec: &Value) -> bool {
    let namespaces = spec["linux"]["namespaces"].as_array();
    let mut all = namespaces.into_iter().flatten();
    all.any(|namespace| namespace["type"] == "user")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn edits(host_path: &str) -> Edits {
        Edits {
            device_nodes: vec![DeviceNode {
                path: "/dev/thing0".into(),
                host_path: host_path.into(),
                ..DeviceNode::default()
            }],
            ..Edits::default()
        }
    }

    #[test]
    fn only_nodes_that_are_elsewhere_are_bound() {
        for host_path in ["", "/dev/thing0"] {
            let mut part = edits(host_path);
            assert!(bind(&mut part).is_empty());
            assert_eq!(part.device_nodes.len(), 1);
        }
        let mut part = edits("/driver/dev/thing0");
        assert_eq!(bind(&mut part).len(), 1);
        assert!(part.device_nodes.is_empty());
        assert_eq!(part.mounts[0].host_path, "/driver/dev/thing0");
    }

    #[test]
    fn a_bound_node_keeps_its_rule() {
        let namespaces = json!({"linux": {"namespaces": [{"type": "mount"}, {"type": "user"}]}});
        let mut spec = Spec::new(namespaces);
        let mut all = [edits("/dev/null")];
        for _ in 0..2 {
            put(&mut spec, &mut all.clone(), Vec::new()).unwrap();
        }
        put(&mut spec, &mut all, Vec::new()).unwrap();
        let value = spec.value();
        assert!(value["linux"].get("devices").is_none(), "{value}");
        assert_eq!(value["mounts"].as_array().map(Vec::len), Some(1));
        let rule = json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"});
        assert_eq!(value["linux"]["resources"]["devices"], json!([rule]));
    }
}
