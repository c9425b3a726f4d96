//! Applies CDI edits to config.json like engines do.
//!
//! Existing entries are distinguished from those these edits add: several equal rules of one application are kept, as
//! engines write them, but a second application of the same edits changes nothing.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use libnvc::host::CharDrivers;
use serde_json::{Map, Value, json};

use super::lenient::member;
use super::paths::clean;
use super::spec::Spec;
use crate::cdi::{DeviceNode, Edits, Hook, Mount};
use crate::nodes;
use crate::programs::DIRECTORIES;

/// A device node of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// `b`, `c` or `p`.
    pub kind: char,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Permission bits.
    pub mode: u32,
}

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

/// Adds hooks. One that runs in the container's namespaces gets an environment if its specification gives it none:
/// engines start it as root with the container's otherwise, by which a dynamic program loads the image's libraries.
fn hooks(spec: &mut Spec, hooks: &[&Hook]) -> Result<(), String> {
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
        if hook.lacks_environment() {
            entry.insert("env".into(), json!([path_variable()]));
        } else if !hook.env.is_empty() {
            entry.insert("env".into(), json!(hook.env));
        }
        if let Some(timeout) = hook.timeout {
            entry.insert("timeout".into(), json!(timeout));
        }
        let mut bare = entry.clone();
        bare.remove("env");
        let (entry, bare) = (Value::Object(entry), Value::Object(bare));
        if before.contains(&entry) {
            continue;
        }
        match list.iter_mut().find(|other| **other == bare) {
            // The engine has applied the same specification.
            Some(other) if hook.lacks_environment() => *other = entry,
            _ => list.push(entry),
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

/// Returns a search path that no container can choose.
fn path_variable() -> String {
    format!("PATH={}", DIRECTORIES.join(":"))
}

/// Returns a string member.
fn text_of<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    member(value.as_object()?, name)?.as_str()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec::new(json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 7}, "env": ["PATH=/bin", "A=own"]},
            "mounts": [
                {"destination": "/a/b/c", "source": "x"},
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/lib/x", "source": "old"},
            ],
            "frob": {"unknown": [1, 2.5]},
        }))
    }

    fn node(path: &str, host: &str) -> DeviceNode {
        DeviceNode {
            path: path.into(),
            host_path: host.into(),
            ..DeviceNode::default()
        }
    }

    fn look_up(path: &Path) -> Result<HostNode, String> {
        let (kind, minor) = match path.to_str().unwrap() {
            "/dev/nv0" => ('c', 0),
            "/dev/nv1" => ('c', 1),
            "/dev/pipe" => ('p', 0),
            other => return Err(format!("{other} is missing")),
        };
        Ok(HostNode {
            kind,
            major: 195,
            minor,
            mode: 0o660,
        })
    }

    fn host(drivers: &CharDrivers) -> Host<'_> {
        Host { look_up, drivers }
    }

    fn edits() -> Edits {
        Edits {
            env: vec!["A=cdi".into(), "B=1".into(), "B=2".into()],
            device_nodes: vec![
                node("/dev/nv0", ""),
                node("/dev/x", "/dev/nv1"),
                node("/dev/y", "/dev/nv1"),
            ],
            mounts: vec![Mount {
                host_path: "/new".into(),
                container_path: "/lib/x".into(),
                options: vec!["ro".into()],
                kind: String::new(),
            }],
            hooks: vec![Hook {
                hook_name: "createContainer".into(),
                path: "/h".into(),
                args: vec!["h".into()],
                ..Hook::default()
            }],
            additional_gids: vec![44, 0, 44],
            ..Edits::default()
        }
    }

    #[test]
    fn everything_goes_where_engines_put_it() {
        let mut spec = spec();
        apply(&mut spec, &[edits()], host(&CharDrivers::default())).unwrap();
        let value = spec.value();
        assert_eq!(
            value["process"]["env"],
            json!(["PATH=/bin", "A=own", "A=cdi", "B=2"])
        );
        assert_eq!(value["process"]["user"]["additionalGids"], json!([44]));
        let device = |path: &str, minor: u64| json!({"path": path, "type": "c", "major": 195, "minor": minor, "fileMode": 0o660, "gid": 7});
        let devices = [
            device("/dev/nv0", 0),
            device("/dev/x", 1),
            device("/dev/y", 1),
        ];
        assert_eq!(value["linux"]["devices"], json!(devices));
        assert_eq!(
            value["linux"]["resources"]["devices"]
                .as_array()
                .unwrap()
                .len(),
            3
        );
        let places: Vec<_> = value["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| &mount["destination"])
            .collect();
        assert_eq!(places, ["/proc", "/lib/x", "/a/b/c"]);
        assert_eq!(value["mounts"][1]["source"], "/new");
        assert_eq!(value["hooks"]["createContainer"][0]["args"], json!(["h"]));
        assert_eq!(value["frob"], json!({"unknown": [1, 2.5]}));
    }

    #[test]
    fn a_second_time_changes_nothing() {
        let mut once = spec();
        apply(&mut once, &[edits()], host(&CharDrivers::default())).unwrap();
        let mut twice = once.clone();
        apply(&mut twice, &[edits()], host(&CharDrivers::default())).unwrap();
        assert_eq!(once, twice);
    }

    #[test]
    fn no_hook_in_the_container_has_its_environment() {
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let hook = |stage: &str, env: &[&str]| Hook {
            hook_name: stage.into(),
            path: "/h".into(),
            env: env.iter().map(ToString::to_string).collect(),
            timeout: Some(7),
            ..Hook::default()
        };
        let stages = [
            "createContainer",
            "startContainer",
            "prestart",
            "createRuntime",
            "poststart",
            "poststop",
        ];
        let hooks = stages
            .iter()
            .flat_map(|stage| [hook(stage, &[]), hook(stage, &["A=b"])]);
        let edits = Edits {
            hooks: hooks.collect(),
            ..Edits::default()
        };
        let entry = |env: Option<&str>| match env {
            Some(env) => json!({"path": "/h", "timeout": 7, "env": [env]}),
            None => json!({"path": "/h", "timeout": 7}),
        };
        // The engine has applied the specification itself.
        let there = json!({"hooks": {"createContainer": [entry(None), {"path": "/x"}]}});
        for mut spec in [Spec::new(json!({})), Spec::new(there)] {
            for _ in 0..2 {
                apply(
                    &mut spec,
                    std::slice::from_ref(&edits),
                    host(&CharDrivers::default()),
                )
                .unwrap();
            }
            let found = &spec.value()["hooks"];
            for stage in stages {
                let inside = ["createContainer", "startContainer"].contains(&stage);
                let list = found[stage].as_array().unwrap();
                let ours: Vec<_> = list.iter().filter(|hook| hook["path"] == "/h").collect();
                let bare = entry(inside.then_some(path));
                assert_eq!(ours, [&bare, &entry(Some("A=b"))], "{stage}");
            }
        }
    }

    #[test]
    fn a_rule_that_is_taken_back_is_given_again() {
        let allowed =
            json!({"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rwm"});
        let mut spec =
            Spec::new(json!({"linux": {"resources": {"devices": [allowed, {"allow": false}]}}}));
        let edits = Edits {
            device_nodes: vec![node("/dev/nv0", "")],
            ..Edits::default()
        };
        apply(&mut spec, &[edits], host(&CharDrivers::default())).unwrap();
        let rules = &spec.value()["linux"]["resources"]["devices"];
        assert_eq!(rules[2], allowed);
    }

    /// Also if a file records numbers: the container gets those.
    #[test]
    fn nodes_must_be_the_devices_of_their_names() {
        let drivers = CharDrivers::of("Character devices:\n195 nvidia\n508 nvidia-uvm\n", "");
        let apply_node = |node: DeviceNode| {
            let edits = Edits {
                device_nodes: vec![node],
                ..Edits::default()
            };
            apply(&mut spec(), &[edits], host(&drivers))
        };
        // The host's nodes are 195:0, 195:1, and a fifo.
        for (path, host_path, expected) in [
            ("/dev/nvidia0", "/dev/nv0", Ok(())),
            ("/dev/nvidia1", "/dev/nv1", Ok(())),
            (
                "/dev/nvidia0",
                "/dev/nv1",
                Err("/dev/nvidia0 is 195:1, and its minor number should be 0"),
            ),
            (
                "/dev/nvidia-uvm",
                "/dev/nv0",
                Err("/dev/nvidia-uvm is 195:0, and the driver's major number is 508"),
            ),
            (
                "/dev/nvidiactl",
                "/dev/pipe",
                Err("/dev/nvidiactl is not a character device"),
            ),
            ("/dev/of-another-vendor", "/dev/pipe", Ok(())),
        ] {
            let done = apply_node(node(path, host_path));
            assert_eq!(done, expected.map_err(String::from), "{path} {host_path}");
        }
        let recorded = |major| DeviceNode {
            kind: "c".into(),
            major,
            ..node("/dev/nvidia-uvm", "")
        };
        assert!(apply_node(recorded(508)).is_ok());
        let outdated = apply_node(recorded(510)).unwrap_err();
        assert_eq!(
            outdated,
            "/dev/nvidia-uvm is 510:0, and the driver's major number is 508"
        );
    }

    #[test]
    fn nodes_must_match_their_declared_type() {
        let apply_node = |node: DeviceNode| {
            let mut spec = spec();
            let edits = Edits {
                device_nodes: vec![node],
                ..Edits::default()
            };
            apply(&mut spec, &[edits], host(&CharDrivers::default()))
                .map(|()| spec.value()["linux"].clone())
        };
        assert_eq!(
            apply_node(node("/dev/none", "")),
            Err("/dev/none is missing".into())
        );
        let block = DeviceNode {
            kind: "b".into(),
            ..node("/dev/nv0", "")
        };
        assert!(
            apply_node(block)
                .unwrap_err()
                .contains("expected a device of type b")
        );
        let known = DeviceNode {
            kind: "c".into(),
            major: 5,
            minor: 6,
            ..node("/dev/none", "")
        };
        assert_eq!(apply_node(known).unwrap()["devices"][0]["major"], 5);
        let fifo = apply_node(node("/dev/pipe", "")).unwrap();
        assert_eq!(fifo["devices"][0].get("major"), None);
        assert_eq!(fifo["resources"]["devices"], json!([]));
    }

    #[test]
    fn members_of_another_type_are_errors() {
        let mut spec = Spec::new(json!({"process": {"env": "A=1"}}));
        assert_eq!(
            apply(&mut spec, &[edits()], host(&CharDrivers::default())),
            Err("process.env: expected a list".into())
        );
    }
}
