//! Applies CDI edits to config.json like engines do.
//!
//! Existing entries are distinguished from those these edits add: several equal rules of one application are kept, as
//! engines write them, but a second application of the same edits changes nothing.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use libnvc::host::CharDrivers;
use nvc_oci::lenient::member;
use nvc_oci::own_environment;
use nvc_oci::paths::clean;
use nvc_oci::spec::Spec;
use serde_json::{Map, Value, json};

use crate::model::{DeviceNode, Edits, Hook, Mount};
use crate::nodes::{self, HostNode};

/// The host's nodes and drivers.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Describes the node at a path.
    pub look_up: fn(&Path) -> Result<HostNode, String>,
    /// The drivers whose devices the nodes must be.
    pub drivers: &'a CharDrivers,
}

/// Applies the edits of specifications in order.
///
/// # Errors
/// A node is missing, has another type than in the edits, or is another device than its name says; or a member of
/// config.json has the wrong type.
pub fn apply(spec: &mut Spec, all: &[Edits], host: Host<'_>) -> Result<(), String> {
    environment(spec, all)?;
    let nodes: Vec<&DeviceNode> = all.iter().flat_map(|edits| &edits.device_nodes).collect();
    device_nodes(spec, &nodes, host)?;
    for device in all.iter().flat_map(|edits| &edits.net_devices) {
        let devices = spec.object(&["linux", "netDevices"])?;
        let name = json!({ "name": device.name });
        devices.insert(device.host_interface_name.clone(), name);
    }
    let new: Vec<&Mount> = all.iter().flat_map(|edits| &edits.mounts).collect();
    mounts(spec, &new)?;
    let new: Vec<&Hook> = all.iter().flat_map(|edits| &edits.hooks).collect();
    hooks(spec, &new)?;
    if let Some(rdt) = all.iter().rev().find_map(|edits| edits.intel_rdt.as_ref()) {
        let value = serde_json::to_value(rdt).map_err(|error| error.to_string())?;
        spec.object(&["linux"])?.insert("intelRdt".into(), value);
    }
    groups(spec, all)
}

fn groups(spec: &mut Spec, all: &[Edits]) -> Result<(), String> {
    let new = all.iter().flat_map(|edits| &edits.additional_gids);
    let mut new = new.filter(|gid| **gid != 0).peekable();
    if new.peek().is_none() {
        return Ok(());
    }
    let gids = spec.list(&["process", "user", "additionalGids"])?;
    let mut seen: HashSet<Value> = gids.iter().cloned().collect();
    gids.extend(
        new.map(|gid| json!(gid))
            .filter(|gid| seen.insert(gid.clone())),
    );
    Ok(())
}

/// Appends variables. The container's own stay, even with the same name: consumers use the last one. A variable that
/// one specification sets twice appears once.
fn environment(spec: &mut Spec, all: &[Edits]) -> Result<(), String> {
    if all.iter().all(|edits| edits.env.is_empty()) {
        return Ok(());
    }
    let env = spec.list(&["process", "env"])?;
    let name_of = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
    // The last value set before: by an earlier application of the same edits.
    let mut said: HashMap<String, String> = HashMap::new();
    for entry in env.iter().filter_map(Value::as_str) {
        said.insert(name_of(entry), entry.to_owned());
    }
    for edits in all {
        let mut wanted: Vec<(String, &String)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for entry in &edits.env {
            let name = name_of(entry);
            match places.get(&name) {
                Some(&place) => wanted[place].1 = entry,
                None => {
                    places.insert(name.clone(), wanted.len());
                    wanted.push((name, entry));
                }
            }
        }
        for (name, entry) in wanted {
            if said.get(&name) != Some(entry) {
                env.push(json!(entry));
            }
        }
    }
    Ok(())
}

fn device_nodes(spec: &mut Spec, nodes: &[&DeviceNode], host: Host<'_>) -> Result<(), String> {
    if nodes.is_empty() {
        return Ok(());
    }
    let owner = ["uid", "gid"].map(|name| process_id(spec, name));
    let complete: Vec<Complete<'_>> = nodes
        .iter()
        .map(|node| complete(node, host))
        .collect::<Result<_, _>>()?;

    let devices = spec.list(&["linux", "devices"])?;
    let paths = complete.iter().map(|node| node.node.path.as_str());
    let last = last_places(paths);
    devices.retain(|other| text_of(other, "path").is_none_or(|path| !last.contains_key(path)));
    for (place, node) in complete.iter().enumerate() {
        if last.get(node.node.path.as_str()) != Some(&place) {
            continue;
        }
        let mut entry = Map::new();
        entry.insert("path".into(), json!(node.node.path));
        entry.insert("type".into(), json!(node.kind));
        if let Some((major, minor)) = node.numbers {
            entry.insert("major".into(), json!(major));
            entry.insert("minor".into(), json!(minor));
        }
        if let Some(mode) = node.mode {
            entry.insert("fileMode".into(), json!(mode));
        }
        let ids = [("uid", node.node.uid), ("gid", node.node.gid)];
        for ((name, own), of_process) in ids.into_iter().zip(owner) {
            if let Some(id) = own.map(u64::from).or(of_process) {
                entry.insert(name.into(), json!(id));
            }
        }
        devices.push(Value::Object(entry));
    }

    let rules = spec.list(&["linux", "resources", "devices"])?;
    // A rule counts as present only if no later rule revokes it.
    let denial = rules
        .iter()
        .rposition(|rule| rule.get("allow") != Some(&json!(true)));
    let there = rules[denial.map_or(0, |index| index + 1)..].iter();
    let there: HashSet<Value> = there.cloned().collect();
    for rule in complete.iter().filter_map(Complete::rule) {
        if !there.contains(&rule) {
            rules.push(rule);
        }
    }
    Ok(())
}

/// Returns the device rule of a node; None for a fifo.
///
/// # Errors
/// Those of [`apply`].
pub fn device_rule(node: &DeviceNode, host: Host<'_>) -> Result<Option<Value>, String> {
    Ok(complete(node, host)?.rule())
}

/// A node completed with the host's data.
struct Complete<'a> {
    node: &'a DeviceNode,
    kind: String,
    numbers: Option<(u64, u64)>,
    mode: Option<u32>,
}

impl Complete<'_> {
    fn rule(&self) -> Option<Value> {
        let (major, minor) = self.numbers?;
        let access = match self.node.permissions.as_str() {
            "" => "rwm",
            some => some,
        };
        Some(json!({
            "allow": true, "type": self.kind, "major": major, "minor": minor, "access": access,
        }))
    }
}

fn complete<'a>(node: &'a DeviceNode, host: Host<'_>) -> Result<Complete<'a>, String> {
    let path = match node.host_path.as_str() {
        "" => &node.path,
        other => other,
    };
    let is_fifo = node.kind == "p";
    let number = |value: i64| {
        u64::try_from(value).map_err(|_| format!("{}: negative device number", node.path))
    };
    let given = (number(node.major)?, number(node.minor)?);
    let is_known = !node.kind.is_empty() && (is_fifo || given.0 != 0);
    let found = match (host.look_up)(Path::new(path)) {
        Ok(found) => Some(found),
        Err(_) if is_known => None,
        Err(what) => return Err(what),
    };
    let kind = match (&found, node.kind.as_str()) {
        (Some(found), "") => found.kind.to_string(),
        (Some(found), kind) if kind != found.kind.to_string() && kind != "u" => {
            let there = found.kind;
            return Err(format!(
                "{path}: expected a device of type {kind}, found type {there}"
            ));
        }
        (_, kind) => kind.to_owned(),
    };
    let numbers = match (given, found) {
        _ if kind == "p" => None,
        ((0, _), Some(found)) => Some((found.major, found.minor)),
        (given, _) => Some(given),
    };
    let (major, minor) = numbers.unwrap_or_default();
    // What the container gets, which need not be what the host has: a file can record numbers.
    let given = HostNode {
        kind: match kind.as_str() {
            "u" => 'c',
            other => other.chars().next().unwrap_or_default(),
        },
        major,
        minor,
        mode: 0,
    };
    nodes::check(node, given, host.drivers)?;
    Ok(Complete {
        node,
        kind,
        numbers,
        mode: node.file_mode.or(found.map(|found| found.mode)),
    })
}

/// Returns the user or group of the process, unless that is root's.
fn process_id(spec: &Spec, name: &str) -> Option<u64> {
    let process = member(spec.value().as_object()?, "process")?;
    let user = member(process.as_object()?, "user")?;
    member(user.as_object()?, name)?
        .as_u64()
        .filter(|id| *id != 0)
}

fn mounts(spec: &mut Spec, new: &[&Mount]) -> Result<(), String> {
    if new.is_empty() {
        return Ok(());
    }
    let mounts = spec.list(&["mounts"])?;
    let last = last_places(new.iter().map(|mount| mount.container_path.as_str()));
    mounts.retain(|other| text_of(other, "destination").is_none_or(|at| !last.contains_key(at)));
    for (place, mount) in new.iter().enumerate() {
        if last.get(mount.container_path.as_str()) != Some(&place) {
            continue;
        }
        let mut entry = Map::new();
        entry.insert("destination".into(), json!(mount.container_path));
        if !mount.kind.is_empty() {
            entry.insert("type".into(), json!(mount.kind));
        }
        entry.insert("source".into(), json!(mount.host_path));
        if !mount.options.is_empty() {
            entry.insert("options".into(), json!(mount.options));
        }
        mounts.push(Value::Object(entry));
    }
    // Deeper mounts come later; otherwise they would be hidden.
    mounts.sort_by_cached_key(|mount| {
        let destination = text_of(mount, "destination").unwrap_or_default();
        clean(destination).matches('/').count()
    });
    Ok(())
}

/// Adds hooks with [`own_environment`], also to those that are there: the engine may have applied the same specification.
fn hooks(spec: &mut Spec, hooks: &[&Hook]) -> Result<(), String> {
    own_environment::give_to_all(spec);
    let mut there: HashMap<&str, HashSet<Value>> = HashMap::new();
    for hook in hooks {
        let list = spec.list(&["hooks", &hook.hook_name])?;
        let before = there
            .entry(&hook.hook_name)
            .or_insert_with(|| list.iter().cloned().collect());
        let mut entry = Map::new();
        entry.insert("path".into(), json!(hook.path));
        if !hook.args.is_empty() {
            entry.insert("args".into(), json!(hook.args));
        }
        if !hook.env.is_empty() {
            entry.insert("env".into(), json!(hook.env));
        }
        if let Some(timeout) = hook.timeout {
            entry.insert("timeout".into(), json!(timeout));
        }
        own_environment::give(&hook.hook_name, &mut entry);
        let entry = Value::Object(entry);
        if !before.contains(&entry) {
            list.push(entry);
        }
    }
    Ok(())
}

/// Returns the last position of each path: of several entries for one path, the last counts, as if each replaced the
/// one before. Searching the list for each of them would take quadratic time.
fn last_places<'a>(paths: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    paths
        .enumerate()
        .map(|(place, path)| (path, place))
        .collect()
}

/// Returns a string member.
fn text_of<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    member(value.as_object()?, name)?.as_str()
}

#[cfg(test)]
mod tests;
