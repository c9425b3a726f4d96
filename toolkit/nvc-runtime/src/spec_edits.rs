//! Applies edits to config.json, and works around runtimes' limits with device nodes in user namespaces.
//!
//! mknod is not permitted there, so low-level runtimes bind the host's node of the same path instead. For a node that
//! is not in the host's /dev this would be another device or fail, so it becomes an explicit bind mount with a device
//! rule.

use std::path::{Path, PathBuf};

use libnvc::host::CharDrivers;
use libnvc::host::in_user_namespace;
use libnvc::plan::Intent;
use nvc_cdi::edits::{self, Host};
use nvc_cdi::nodes;
use nvc_cdi::{DeviceNode, Edits, Mount};
use nvc_generate::{VOID, apply_hook, nodes_and_variables};
use nvc_oci::paths::{absolute, clean};
use nvc_oci::spec::Spec;
use nvc_program::hook_names::APPLY;
use nvc_program::messages::Level;
use serde_json::{Value, json};

use crate::error::Result;
use crate::job::Job;

/// The options with which runtimes bind nodes.
const OPTIONS: [&str; 4] = ["rbind", "rprivate", "nosuid", "noexec"];

/// Gives a container what is planned for it: nodes and variables in config.json, everything else by our hook, which sees
/// the finished root. `further` are edits that no plan has.
pub(crate) fn give(job: &mut Job<'_>, intents: &[Intent], further: Option<Edits>) -> Result<()> {
    if job.log.has_steps() {
        for intent in intents {
            job.log
                .write(Level::Debug, &format!("giving {}", json!(intent)));
        }
    }
    let mut rendering = job.rendering();
    let mut edits = nodes_and_variables(intents, &rendering);
    let rest = rendering.hooks.intents(intents);
    if !rest.is_empty() {
        rendering.hooks.program = job.hook_program()?;
        let hook = apply_hook(&rest, &[OURS.to_owned()], &rendering);
        edits.hooks.push(hook.map_err(|error| error.hint(WAY_OUT))?);
    }
    let mut all = vec![edits];
    all.extend(further);
    apply(job, &mut all)
}

/// Marks our hook: an engine may have added one of a specification, which stays.
const OURS: &str = "--by-runtime";

/// Removes the hook of an earlier run, whose plan may be outdated: this run gives GPUs again, or none are requested any
/// more. A request that the earlier run has fulfilled is void, and its hook stays with its nodes.
pub(crate) fn forget(spec: &mut Spec, gives_gpu: bool) -> Result<()> {
    let path = ["hooks", "createContainer"];
    let is_fulfilled = || {
        let mut variables = spec.value()["process"]["env"]
            .as_array()
            .into_iter()
            .flatten();
        variables.any(|entry| entry == VOID)
    };
    if spec.has(&path) && (gives_gpu || !is_fulfilled()) {
        let is_ours = |hook: &Value| {
            let mut words = hook["args"].as_array().into_iter().flatten();
            words.any(|word| word == APPLY) && words.any(|word| word == OURS)
        };
        spec.list(&path)?.retain(|hook| !is_ours(hook));
    }
    Ok(())
}

/// What to do if a plan is too long for an argument.
const WAY_OUT: &str =
    "request fewer driver capabilities or devices, or use mode legacy, which has no such limit";

/// Applies the edits of specifications to a container.
pub(crate) fn apply(job: &mut Job<'_>, all: &mut [Edits]) -> Result<()> {
    let mut on_volumes = Vec::new();
    for edits in all.iter_mut() {
        let nodes = std::mem::take(&mut edits.device_nodes).into_iter();
        let is_on_volume = |node: &DeviceNode| volume(job.spec.value(), &node.path).is_some();
        let (left, kept): (Vec<_>, Vec<_>) = nodes.partition(is_on_volume);
        edits.device_nodes = kept;
        on_volumes.extend(left);
    }
    for node in &on_volumes {
        let source = volume(job.spec.value(), &node.path);
        let on_host = source.map(|source| absolute(&source.to_string_lossy(), &job.place.bundle));
        if on_host.is_some_and(|path| path.symlink_metadata().is_err()) {
            let path = &node.path;
            let text = format!("leaving out {path}: it is on a volume, which may not be changed");
            job.warn(&text);
        }
    }
    put(job.spec, all, on_volumes)
}

/// Returns the place on the host of a path below a volume, by the names in config.json. The low-level runtime would
/// create a node there.
fn volume(spec: &Value, path: &str) -> Option<PathBuf> {
    let mounts = spec["mounts"].as_array().into_iter().flatten().rev();
    let path = clean(path);
    mounts
        .filter_map(|mount| {
            let point = clean(mount["destination"].as_str()?);
            let below = Path::new(&path).strip_prefix(&point).ok()?;
            let mut options = mount["options"].as_array().into_iter().flatten();
            let is_bind = mount["type"] == "bind"
                || options.any(|option| option == "bind" || option == "rbind");
            let is_above = !below.as_os_str().is_empty();
            (is_bind && is_above)
                .then(|| Path::new(mount["source"].as_str().unwrap_or("")).join(below))
        })
        .next()
}

/// Puts edits into config.json, and the rules of further nodes.
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

    #[test]
    fn only_the_hooks_of_an_earlier_run_are_forgotten() {
        let hook = |words: &[&str]| json!({"path": "/usr/bin/nvidia-cdi-hook", "args": words});
        let kept = [
            hook(&["nvidia-cdi-hook", "apply", "--plan={}"]),
            hook(&["nvidia-cdi-hook", "chmod", "--by-runtime"]),
            json!({"path": "/x"}),
        ];
        let ours = hook(&["nvidia-cdi-hook", "apply", "--by-runtime", "--plan={}"]);
        let hooks = [&kept[..], &[ours]].concat();
        let mut spec = Spec::new(json!({"hooks": {"createContainer": hooks}}));
        // What an earlier run has given stays together.
        let void = json!({"process": {"env": [VOID]}, "hooks": {"createContainer": hooks}});
        let mut fulfilled = Spec::new(void.clone());
        forget(&mut fulfilled, false).unwrap();
        assert_eq!(fulfilled.value(), &void);
        forget(&mut fulfilled, true).unwrap();
        forget(&mut spec, false).unwrap();
        for spec in [&spec, &fulfilled] {
            assert_eq!(spec.value()["hooks"]["createContainer"], json!(kept));
        }
        let mut bare = Spec::new(json!({}));
        forget(&mut bare, true).unwrap();
        assert_eq!(bare.value(), &json!({}));
    }

    #[test]
    fn nodes_on_volumes_are_found_by_name() {
        let spec = json!({"mounts": [
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev/dri/", "type": "bind", "source": "/host/dri"},
            {"destination": "/opt", "options": ["rbind"], "source": "/host/opt"},
            {"destination": "/dev/nvidia0", "type": "bind", "source": "/dev/nvidia0"},
        ]});
        for (path, expected) in [
            ("/dev/nvidiactl", None),
            ("/dev/nvidia0", None),
            ("/dev/dri/card0", Some("/host/dri/card0")),
            ("/opt/../dev/dri/card0", Some("/host/dri/card0")),
            ("/opt/x/y", Some("/host/opt/x/y")),
            ("/options", None),
        ] {
            assert_eq!(volume(&spec, path), expected.map(PathBuf::from), "{path}");
        }
    }
}
