//! Applies CDI edits to config.json like engines do.
//!
//! Existing entries are distinguished from those these edits add: several equal rules of one application are kept, as
//! engines write them, but a second application of the same edits changes nothing.

use std::collections::HashSet;
use std::path::Path;

use indexmap::{IndexMap, IndexSet};
use libnvc::Result;
use libnvc::host::CharDrivers;
use nvc_oci::lenient::member;
use nvc_oci::own_environment;
use nvc_oci::paths::clean;
use nvc_oci::spec::Spec;
use serde_json::{Map, Value, json};

use crate::malformed;
use crate::model::{DeviceNode, Edits, Hook, Mount};
use crate::nodes::{self, HostNode};

impl HostNode {
    fn kind_name(self) -> &'static str {
        match self.kind {
            'b' => "b",
            'p' => "p",
            _ => "c",
        }
    }
}

/// The host's nodes and drivers.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Describes the node at a path.
    pub look_up: fn(&Path) -> Result<HostNode>,
    /// The drivers whose devices the nodes must be.
    pub drivers: &'a CharDrivers,
}

/// Applies the edits of specifications in order.
///
/// # Errors
/// A node is missing, has another type than in the edits, or is another device than its name says; or a member of
/// config.json has the wrong type.
pub fn apply(spec: &mut Spec, all: &[Edits], host: Host<'_>) -> Result<()> {
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
        let value = serde_json::to_value(rdt).map_err(|error| malformed(error.to_string()))?;
        spec.object(&["linux"])?.insert("intelRdt".into(), value);
    }
    groups(spec, all)
}

fn groups(spec: &mut Spec, all: &[Edits]) -> Result<()> {
    let new = all.iter().flat_map(|edits| &edits.additional_gids);
    let mut new = new.filter(|gid| **gid != 0).peekable();
    if new.peek().is_none() {
        return Ok(());
    }
    let gids = spec.list(&["process", "user", "additionalGids"])?;
    let mut seen: HashSet<u64> = gids.iter().filter_map(Value::as_u64).collect();
    let new = new.map(|gid| u64::from(*gid));
    gids.extend(new.filter(|gid| seen.insert(*gid)).map(Value::from));
    Ok(())
}

/// Sets variables: the last value of each, once, in place of the container's own. Runtimes use the last of several
/// entries, but others may use the first.
fn environment(spec: &mut Spec, all: &[Edits]) -> Result<()> {
    if all.iter().all(|edits| edits.env.is_empty()) {
        return Ok(());
    }
    let env = spec.list(&["process", "env"])?;
    let new = all.iter().flat_map(|edits| &edits.env);
    let mut wanted: IndexMap<&str, Option<&str>> = new
        .map(|entry| by_name(entry))
        .map(|(name, entry)| (name, Some(entry)))
        .collect();
    env.retain_mut(|there| {
        let name = there.as_str().map(|entry| by_name(entry).0);
        match name.and_then(|name| wanted.get_mut(name)) {
            None => true,
            // At the place of the container's first.
            Some(entry) => entry.take().map(|entry| *there = entry.into()).is_some(),
        }
    });
    env.extend(wanted.into_values().flatten().map(Value::from));
    Ok(())
}

/// Returns the name of a variable, and its entry.
fn by_name(entry: &str) -> (&str, &str) {
    (entry.split('=').next().unwrap_or_default(), entry)
}

fn device_nodes(spec: &mut Spec, nodes: &[&DeviceNode], host: Host<'_>) -> Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let owner = ["uid", "gid"].map(|name| process_id(spec, name));
    let complete: Vec<CompleteNode<'_>> = nodes
        .iter()
        .map(|node| complete(node, host))
        .collect::<Result<_>>()?;

    let devices = spec.list(&["linux", "devices"])?;
    let paths = complete.iter().map(|node| node.node.path.as_str());
    let last = last_places(paths);
    devices.retain(|other| text_of(other, "path").is_none_or(|path| !last.contains_key(path)));
    for (place, node) in complete.iter().enumerate() {
        if last.get(node.node.path.as_str()) != Some(&place) {
            continue;
        }
        let (major, minor) = node.numbers.unzip();
        let [uid, gid] = owner;
        devices.push(object([
            ("path", Some(node.node.path.as_str().into())),
            ("type", Some(node.kind.into())),
            ("major", major.map(Value::from)),
            ("minor", minor.map(Value::from)),
            ("fileMode", node.mode.map(Value::from)),
            ("uid", node.node.uid.map(u64::from).or(uid).map(Value::from)),
            ("gid", node.node.gid.map(u64::from).or(gid).map(Value::from)),
        ]));
    }

    let rules = spec.list(&["linux", "resources", "devices"])?;
    // A rule counts as present only if no later rule revokes it.
    let denial = rules
        .iter()
        .rposition(|rule| rule.get("allow") != Some(&json!(true)));
    let there = rules[denial.map_or(0, |index| index + 1)..].iter();
    let there: IndexSet<Rule<'_>> = there.filter_map(Rule::read).collect();
    let new = complete.iter().filter_map(CompleteNode::rule);
    let new = new.filter(|rule| !there.contains(rule)).map(Rule::value);
    let new: Vec<Value> = new.collect();
    rules.extend(new);
    Ok(())
}

/// Returns an object of the members that have a value. It takes no more memory than they need: images choose how many
/// entries there are.
fn object<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let number = members.iter().filter(|(_, value)| value.is_some()).count();
    let mut object = Map::with_capacity(number);
    for (name, value) in members {
        if let Some(value) = value {
            object.insert(name.into(), value);
        }
    }
    Value::Object(object)
}

/// Returns a list of strings; None if it is empty.
fn texts(list: &[String]) -> Option<Value> {
    (!list.is_empty()).then(|| list.iter().map(String::as_str).collect())
}

/// A device rule that allows access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rule<'a> {
    kind: &'a str,
    major: u64,
    minor: u64,
    access: &'a str,
}

impl<'a> Rule<'a> {
    /// Reads a rule of config.json; None unless it has exactly the members of [`value`](Self::value).
    fn read(value: &'a Value) -> Option<Self> {
        let members = value.as_object().filter(|members| members.len() == 5)?;
        let text = |name| members.get(name).and_then(Value::as_str);
        let number = |name| members.get(name).and_then(Value::as_u64);
        let allows = members.get("allow").and_then(Value::as_bool);
        allows.filter(|allows| *allows)?;
        Some(Self {
            kind: text("type")?,
            major: number("major")?,
            minor: number("minor")?,
            access: text("access")?,
        })
    }

    fn value(self) -> Value {
        object([
            ("allow", Some(true.into())),
            ("type", Some(self.kind.into())),
            ("major", Some(self.major.into())),
            ("minor", Some(self.minor.into())),
            ("access", Some(self.access.into())),
        ])
    }
}

/// Returns the device rule of a node; None for a fifo.
///
/// # Errors
/// Those of [`apply`].
pub fn device_rule(node: &DeviceNode, host: Host<'_>) -> Result<Option<Value>> {
    Ok(complete(node, host)?.rule().map(Rule::value))
}

/// A node completed with the host's data.
struct CompleteNode<'a> {
    node: &'a DeviceNode,
    kind: &'a str,
    numbers: Option<(u64, u64)>,
    mode: Option<u32>,
}

impl<'a> CompleteNode<'a> {
    fn rule(&self) -> Option<Rule<'a>> {
        let (major, minor) = self.numbers?;
        let access = match self.node.permissions.as_str() {
            "" => "rwm",
            some => some,
        };
        Some(Rule {
            kind: self.kind,
            major,
            minor,
            access,
        })
    }
}

fn complete<'a>(node: &'a DeviceNode, host: Host<'_>) -> Result<CompleteNode<'a>> {
    let path = node.on_host();
    let is_fifo = node.kind == "p";
    let number = |value: i64| {
        u64::try_from(value).map_err(|_| {
            let text = format!("{}: negative device number", node.path);
            malformed(text)
        })
    };
    let given = (number(node.major)?, number(node.minor)?);
    let is_known = !node.kind.is_empty() && (is_fifo || given.0 != 0);
    let found = match (host.look_up)(Path::new(path)) {
        Ok(found) => Some(found),
        Err(_) if is_known => None,
        Err(error) => return Err(error),
    };
    let kind = match (found.map(HostNode::kind_name), node.kind.as_str()) {
        (Some(there), "") => there,
        (Some(there), kind) if kind != there && kind != "u" => {
            return Err(malformed(format!(
                "{path}: expected a device of type {kind}, found type {there}"
            )));
        }
        (_, kind) => kind,
    };
    let numbers = match (given, found) {
        _ if kind == "p" => None,
        ((0, _), Some(found)) => Some((found.major, found.minor)),
        (given, _) => Some(given),
    };
    let (major, minor) = numbers.unwrap_or_default();
    // What the container gets, which need not be what the host has: a file can record numbers.
    let given = HostNode {
        kind: match kind {
            "u" => 'c',
            other => other.chars().next().unwrap_or_default(),
        },
        major,
        minor,
        mode: 0,
    };
    nodes::check(node, given, host.drivers)?;
    Ok(CompleteNode {
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

fn mounts(spec: &mut Spec, new: &[&Mount]) -> Result<()> {
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
        let kind = Some(mount.kind.as_str()).filter(|kind| !kind.is_empty());
        mounts.push(object([
            ("destination", Some(mount.container_path.as_str().into())),
            ("type", kind.map(Value::from)),
            ("source", Some(mount.host_path.as_str().into())),
            ("options", texts(&mount.options)),
        ]));
    }
    // Deeper mounts come later; otherwise they would be hidden.
    mounts.sort_by_cached_key(|mount| {
        let destination = text_of(mount, "destination").unwrap_or_default();
        clean(destination).matches('/').count()
    });
    Ok(())
}

/// Adds hooks with [`own_environment`], also to those that are there: the engine may have applied the same specification.
fn hooks(spec: &mut Spec, hooks: &[&Hook]) -> Result<()> {
    own_environment::give_to_all(spec);
    let mut stages: IndexMap<&str, Vec<Value>> = IndexMap::new();
    for hook in hooks {
        let stage = hook.hook_name.as_str();
        stages.entry(stage).or_default().push(hook_entry(hook));
    }
    for (stage, mut new) in stages {
        let list = spec.list(&["hooks", stage])?;
        let before: IndexSet<&Value> = list.iter().collect();
        new.retain(|entry| !before.contains(entry));
        list.extend(new);
    }
    Ok(())
}

fn hook_entry(hook: &Hook) -> Value {
    let env = texts(&hook.env);
    let own = match env {
        Some(_) => None,
        None => own_environment::of(&hook.hook_name),
    };
    object([
        ("path", Some(hook.path.as_str().into())),
        ("args", texts(&hook.args)),
        ("env", env),
        ("timeout", hook.timeout.map(Value::from)),
        ("env", own),
    ])
}

/// Returns the last position of each path: of several entries for one path, the last counts, as if each replaced the
/// one before. Searching the list for each of them would take quadratic time.
fn last_places<'a>(paths: impl Iterator<Item = &'a str>) -> IndexMap<&'a str, usize> {
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
