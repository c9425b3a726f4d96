//! Edits an OCI `config.json` as CDI edits demand, the way engines do.
//!
//! The file is edited as data: what is not named here stays as it is. Doing it twice changes nothing more.

use std::collections::HashSet;
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use nix::sys::stat::{SFlag, major, minor, stat};
use serde_json::{Map, Value, json};

use super::model::{DeviceNode, Edits, Hook, Mount};

/// What the host says of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// `b`, `c` or `p`.
    pub kind: char,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
}

/// Looks a node up on this host.
pub fn host_node(path: &Path) -> Result<HostNode> {
    let stat = stat(path).map_err(|errno| Error::file("stat failed", path, errno))?;
    let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFBLK => 'b',
        SFlag::S_IFCHR => 'c',
        SFlag::S_IFIFO => 'p',
        _ => {
            let text = format!("{} is no device node", path.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
    };
    Ok(HostNode {
        kind,
        major: major(stat.st_rdev),
        minor: minor(stat.st_rdev),
    })
}

/// Applies edits to a container's configuration. `look_up` says what a host's node is: [`host_node`].
pub fn inject(
    config: &mut Value,
    edits: &Edits,
    look_up: &dyn Fn(&Path) -> Result<HostNode>,
) -> Result<()> {
    let config = object(config, "config.json")?;
    if !edits.env.is_empty() {
        environment(list(child(config, "process")?, "env")?, &edits.env);
    }
    for node in &edits.device_nodes {
        device_node(config, node, look_up)?;
    }
    for device in &edits.net_devices {
        let devices = child(child(config, "linux")?, "netDevices")?;
        let name = json!({ "name": device.name });
        devices.insert(device.host_interface_name.clone(), name);
    }
    mounts(config, &edits.mounts)?;
    for hook in &edits.hooks {
        let entry = hook_entry(hook);
        let stage = list(child(config, "hooks")?, &hook.hook_name)?;
        if !stage.contains(&entry) {
            stage.push(entry);
        }
    }
    if let Some(rdt) = &edits.intel_rdt {
        let value = serde_json::to_value(rdt).unwrap_or_default();
        child(config, "linux")?.insert("intelRdt".into(), value);
    }
    for &gid in edits.additional_gids.iter().filter(|&&gid| gid != 0) {
        let gids = list(child(child(config, "process")?, "user")?, "additionalGids")?;
        if !gids.contains(&json!(gid)) {
            gids.push(json!(gid));
        }
    }
    Ok(())
}

/// Sets variables; one of the same name is replaced where it stands.
fn environment(env: &mut Vec<Value>, new: &[String]) {
    let name = |entry: &str| {
        entry
            .split_once('=')
            .map_or(entry, |(name, _)| name)
            .to_string()
    };
    for entry in new {
        let same = |value: &Value| value.as_str().is_some_and(|old| name(old) == name(entry));
        match env.iter().position(same) {
            Some(at) => env[at] = json!(entry),
            None => env.push(json!(entry)),
        }
    }
}

fn device_node(
    config: &mut Map<String, Value>,
    node: &DeviceNode,
    look_up: &dyn Fn(&Path) -> Result<HostNode>,
) -> Result<()> {
    let (kind, numbers) = resolved(node, look_up)?;
    let mut device = Map::new();
    device.insert("path".into(), json!(node.path));
    device.insert("type".into(), json!(kind));
    if let Some((major, minor)) = numbers {
        device.insert("major".into(), json!(major));
        device.insert("minor".into(), json!(minor));
    }
    if let Some(mode) = node.file_mode {
        device.insert("fileMode".into(), json!(mode));
    }
    for (key, own) in [("uid", node.uid), ("gid", node.gid)] {
        let of_process = config
            .get("process")
            .and_then(|process| process.get("user")?.get(key)?.as_u64());
        if let Some(id) = own.map(u64::from).or(of_process.filter(|&id| id > 0)) {
            device.insert(key.into(), json!(id));
        }
    }
    let linux = child(config, "linux")?;
    let devices = list(linux, "devices")?;
    let device = Value::Object(device);
    if !devices.contains(&device) {
        devices.retain(|other| other.get("path") != Some(&json!(node.path)));
        devices.push(device);
    }
    if let (true, Some((major, minor))) = (kind == "b" || kind == "c", numbers) {
        let access = match node.permissions.as_str() {
            "" => "rwm",
            "none" => "",
            some => some,
        };
        let rule = json!({ "allow": true, "type": kind, "major": major, "minor": minor, "access": access });
        let rules = list(child(linux, "resources")?, "devices")?;
        // The last rule that fits a device decides, so one that is there must also come last of those that fit.
        if rules.last() != Some(&rule) && !covered(rules, &rule) {
            rules.push(rule);
        }
    }
    Ok(())
}

/// Whether a rule is there and none after it denies anything.
fn covered(rules: &[Value], rule: &Value) -> bool {
    rules
        .iter()
        .rposition(|other| other == rule)
        .is_some_and(|at| {
            rules[at..]
                .iter()
                .all(|other| other.get("allow") == Some(&Value::Bool(true)))
        })
}

/// Type and number of a node: what the specification says fully, else what the host's node is.
fn resolved(
    node: &DeviceNode,
    look_up: &dyn Fn(&Path) -> Result<HostNode>,
) -> Result<(String, Option<(u64, u64)>)> {
    let recorded = (node.major.unsigned_abs(), node.minor.unsigned_abs());
    if node.kind == "p" {
        return Ok((node.kind.clone(), None));
    }
    if !node.kind.is_empty() && node.major != 0 {
        return Ok((node.kind.clone(), Some(recorded)));
    }
    let path = if node.host_path.is_empty() {
        &node.path
    } else {
        &node.host_path
    };
    let found = match look_up(Path::new(path)) {
        Ok(found) => found,
        Err(error) => {
            return Err(error
                .context(format!("CDI device {path}"))
                .hint("nvidia-ctk cdi verify says whether the specification is out of date"));
        }
    };
    // A number without a type was true when the file was made; a major can be another after a reboot, so the node stands.
    let kind = found.kind.to_string();
    if !node.kind.is_empty() && node.kind != kind && !(node.kind == "u" && kind == "c") {
        let text = format!(
            "CDI device {path}: type {} in the specification, {kind} on the host",
            node.kind
        );
        return Err(Error::new(ErrorKind::Malformed, text));
    }
    let numbers = (found.kind != 'p').then_some((found.major, found.minor));
    Ok((kind, numbers))
}

fn mounts(config: &mut Map<String, Value>, new: &[Mount]) -> Result<()> {
    if new.is_empty() {
        return Ok(());
    }
    let mounts = list(config, "mounts")?;
    for mount in new {
        let entry = mount_entry(mount);
        if mounts.contains(&entry) {
            continue;
        }
        mounts.retain(|other| other.get("destination") != Some(&json!(mount.container_path)));
        mounts.push(entry);
    }
    // What is deeper comes later, or it would be hidden.
    mounts.sort_by_cached_key(|mount| {
        let destination = mount
            .get("destination")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let parts = destination
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".");
        parts.count()
    });
    Ok(())
}

fn mount_entry(mount: &Mount) -> Value {
    let mut entry = Map::new();
    entry.insert("destination".into(), json!(mount.container_path));
    if !mount.kind.is_empty() {
        entry.insert("type".into(), json!(mount.kind));
    }
    entry.insert("source".into(), json!(mount.host_path));
    if !mount.options.is_empty() {
        entry.insert("options".into(), json!(mount.options));
    }
    Value::Object(entry)
}

fn hook_entry(hook: &Hook) -> Value {
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
    Value::Object(entry)
}

/// The names of variables that edits set, for a caller that reports them.
pub fn variables(edits: &Edits) -> HashSet<&str> {
    edits
        .env
        .iter()
        .map(|entry| {
            entry
                .split_once('=')
                .map_or(entry.as_str(), |(name, _)| name)
        })
        .collect()
}

fn object<'a>(value: &'a mut Value, name: &str) -> Result<&'a mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value
        .as_object_mut()
        .ok_or_else(|| wrong(name, "an object"))
}

/// A member that is an object; made if missing.
fn child<'a>(of: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Map<String, Value>> {
    object(of.entry(key).or_insert(Value::Null), key)
}

/// A member that is a list; made if missing.
fn list<'a>(of: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Vec<Value>> {
    let value = of.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().ok_or_else(|| wrong(key, "a list"))
}

fn wrong(key: &str, what: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("{key} is not {what}"))
}
