//! Edits a container's config.json, the OCI runtime's input, according to a plan.
//!
//! Only the plan's additions are made. Unknown members are kept, and a second pass changes nothing. Intents that
//! config.json cannot express (links, library path, procfs) become one createContainer hook,
//! [merged](super::cdi::MERGED).

use std::path::Path;

use serde_json::{Map, Value, json};

use super::cdi::{self, Edits, Hooks};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Intent;

/// Options of the edit.
#[derive(Clone, Debug)]
pub struct Options {
    /// Paths on the host.
    pub host: cdi::Options,
    /// The hook program and its leading arguments: its name, then an optional subcommand.
    pub hook: Option<(String, Vec<String>)>,
    /// Bind nodes whose host path differs, because mknod is not possible, as in a user namespace.
    pub bind_nodes: bool,
}

/// Adds the intents to a configuration; returns true if it changed.
///
/// # Errors
/// If a member that must be an object or a list has another type. The configuration is then partly changed and must be
/// discarded.
pub fn edit(config: &mut Value, intents: &[Intent], options: &Options) -> Result<bool> {
    let before = config.clone();
    let host = cdi::Options {
        hooks: Hooks::Merged,
        ..options.host.clone()
    };
    let edits = cdi::edits(intents, &host);
    environment(config, &edits)?;
    devices(config, &edits, options)?;
    mounts(config, &edits)?;
    hooks(config, &edits, options)?;
    Ok(*config != before)
}

/// Sets variables, replacing those of the same name.
fn environment(config: &mut Value, edits: &Edits) -> Result<()> {
    if edits.env.is_empty() {
        return Ok(());
    }
    let env = list(config, &["process", "env"])?;
    for (name, value) in &edits.env {
        let entry = json!(format!("{name}={value}"));
        let is_same = |old: &Value| {
            let text = old.as_str().unwrap_or_default();
            text.split_once('=').is_some_and(|(known, _)| known == name)
        };
        if env.iter().filter(|old| is_same(old)).collect::<Vec<_>>() != [&entry] {
            env.retain(|old| !is_same(old));
            env.push(entry);
        }
    }
    Ok(())
}

/// Adds nodes, and the right to read and write them.
fn devices(config: &mut Value, edits: &Edits, options: &Options) -> Result<()> {
    for node in &edits.device_nodes {
        let path = json!(node.path);
        match (&node.host_path, options.bind_nodes) {
            (Some(source), true) => bind_node(config, source, &path)?,
            _ => {
                let mut device = json!({
                    "path": path,
                    "type": "c",
                    "major": node.number.major,
                    "minor": node.number.minor,
                });
                if let (Some(owner), Some(device)) = (node.owner, device.as_object_mut()) {
                    device.insert("fileMode".into(), json!(owner.mode & 0o777));
                    device.insert("uid".into(), json!(owner.uid));
                    device.insert("gid".into(), json!(owner.gid));
                }
                let known = list(config, &["linux", "devices"])?;
                known.retain(|old| old.get("path") != Some(&path) || *old == device);
                add(known, device);
            }
        }
        let rule = json!({
            "allow": true,
            "type": "c",
            "major": node.number.major,
            "minor": node.number.minor,
            "access": "rw",
        });
        add(list(config, &["linux", "resources", "devices"])?, rule);
    }
    Ok(())
}

fn bind_node(config: &mut Value, source: &Path, path: &Value) -> Result<()> {
    let options = ["ro", "nosuid", "noexec", "bind"];
    let mount =
        json!({ "destination": path, "type": "bind", "source": source, "options": options });
    add(list(config, &["mounts"])?, mount);
    Ok(())
}

fn mounts(config: &mut Value, edits: &Edits) -> Result<()> {
    for mount in &edits.mounts {
        let mount = json!({
            "destination": mount.container_path,
            "type": "bind",
            "source": mount.host_path,
            "options": mount.options.words(),
        });
        add(list(config, &["mounts"])?, mount);
    }
    Ok(())
}

fn hooks(config: &mut Value, edits: &Edits, options: &Options) -> Result<()> {
    let Some((program, leading)) = &options.hook else {
        return Ok(());
    };
    for hook in &edits.hooks {
        let name = [hook.name.to_owned()];
        let arguments: Vec<_> = leading.iter().chain(&name).chain(&hook.arguments).collect();
        // A separate environment: otherwise some runtimes pass the container's.
        let run = json!({ "path": program, "args": arguments, "env": ["NVIDIA_CTK_DEBUG=false"] });
        add(list(config, &["hooks", "createContainer"])?, run);
    }
    Ok(())
}

fn add(entries: &mut Vec<Value>, entry: Value) {
    if !entries.contains(&entry) {
        entries.push(entry);
    }
}

/// Returns a list in the configuration; creates it if it is missing or null.
fn list<'v>(value: &'v mut Value, path: &[&str]) -> Result<&'v mut Vec<Value>> {
    let wrong = |kind: &str| {
        let cause = format!("{} is not {kind}", path.join("."));
        Error::fault(ErrorKind::Malformed, "config.json", cause)
    };
    let (last, objects) = path.split_last().ok_or_else(|| wrong("a list"))?;
    let mut at = value;
    for name in objects {
        at = member(at, name, || Value::Object(Map::new())).ok_or_else(|| wrong("an object"))?;
    }
    let found = member(at, last, || Value::Array(Vec::new())).ok_or_else(|| wrong("an object"))?;
    found.as_array_mut().ok_or_else(|| wrong("a list"))
}

fn member<'v>(
    value: &'v mut Value,
    name: &str,
    empty: impl FnOnce() -> Value,
) -> Option<&'v mut Value> {
    let member = value.as_object_mut()?.entry(name).or_insert(Value::Null);
    if member.is_null() {
        *member = empty();
    }
    Some(member)
}

#[cfg(test)]
mod tests;
