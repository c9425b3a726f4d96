//! Converts a [`Node`] tree to a [`Spec`], and rejects anything outside the schema.
//!
//! Like Go's decoder, it ignores the case of keys, keeps a field's default for null, and accepts a number or boolean
//! where the schema has a string. Errors name the position, for instance `devices[0].containerEdits.mounts[2]: unknown
//! key "from"`.

use libnvc::{Error, Result};

use super::malformed;
use super::model::{Device, DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice, Spec};
use super::node::Node;

/// Decodes the top level.
pub(super) fn spec(node: Node) -> Result<Spec> {
    if node == Node::Null {
        return Err(malformed("the file has no content"));
    }
    let mut spec = Spec::default();
    members(node, "", &mut |key, value, at| {
        match key {
            "cdiversion" => text(value, at, &mut spec.cdi_version)?,
            "kind" => text(value, at, &mut spec.kind)?,
            "annotations" => annotations(value, at, &mut spec.annotations)?,
            "devices" => list(value, at, &mut spec.devices, device)?,
            "containeredits" => spec.container_edits = edits(value, at)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(spec)
}

fn device(node: Node, at: &str) -> Result<Device> {
    let mut device = Device::default();
    members(node, at, &mut |key, value, at| {
        match key {
            "name" => text(value, at, &mut device.name)?,
            "annotations" => annotations(value, at, &mut device.annotations)?,
            "containeredits" => device.container_edits = edits(value, at)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(device)
}

fn edits(node: Node, at: &str) -> Result<Edits> {
    let mut edits = Edits::default();
    members(node, at, &mut |key, value, at| {
        match key {
            "env" => list(value, at, &mut edits.env, word)?,
            "devicenodes" => list(value, at, &mut edits.device_nodes, device_node)?,
            "netdevices" => list(value, at, &mut edits.net_devices, net_device)?,
            "hooks" => list(value, at, &mut edits.hooks, hook)?,
            "mounts" => list(value, at, &mut edits.mounts, mount)?,
            "intelrdt" if value != Node::Null => edits.intel_rdt = Some(intel_rdt(value, at)?),
            "intelrdt" => {}
            "additionalgids" => list(value, at, &mut edits.additional_gids, id)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(edits)
}

fn device_node(node: Node, at: &str) -> Result<DeviceNode> {
    let mut found = DeviceNode::default();
    present(&node, at)?;
    members(node, at, &mut |key, value, at| {
        match key {
            "path" => text(value, at, &mut found.path)?,
            "hostpath" => text(value, at, &mut found.host_path)?,
            "type" => text(value, at, &mut found.kind)?,
            "major" => number(&value, at, &mut found.major)?,
            "minor" => number(&value, at, &mut found.minor)?,
            "filemode" => optional(value, at, &mut found.file_mode, id)?,
            "permissions" => text(value, at, &mut found.permissions)?,
            "uid" => optional(value, at, &mut found.uid, id)?,
            "gid" => optional(value, at, &mut found.gid, id)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

fn net_device(node: Node, at: &str) -> Result<NetDevice> {
    let mut found = NetDevice::default();
    present(&node, at)?;
    members(node, at, &mut |key, value, at| {
        match key {
            "hostinterfacename" => text(value, at, &mut found.host_interface_name)?,
            "name" => text(value, at, &mut found.name)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

fn hook(node: Node, at: &str) -> Result<Hook> {
    let mut hook = Hook::default();
    present(&node, at)?;
    members(node, at, &mut |key, value, at| {
        match key {
            "hookname" => text(value, at, &mut hook.hook_name)?,
            "path" => text(value, at, &mut hook.path)?,
            "args" => list(value, at, &mut hook.args, word)?,
            "env" => list(value, at, &mut hook.env, word)?,
            "timeout" => optional(value, at, &mut hook.timeout, whole)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(hook)
}

fn mount(node: Node, at: &str) -> Result<Mount> {
    let mut mount = Mount::default();
    present(&node, at)?;
    members(node, at, &mut |key, value, at| {
        match key {
            "hostpath" => text(value, at, &mut mount.host_path)?,
            "containerpath" => text(value, at, &mut mount.container_path)?,
            "options" => list(value, at, &mut mount.options, word)?,
            "type" => text(value, at, &mut mount.kind)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(mount)
}

fn intel_rdt(node: Node, at: &str) -> Result<IntelRdt> {
    let mut rdt = IntelRdt::default();
    members(node, at, &mut |key, value, at| {
        match key {
            "closid" => text(value, at, &mut rdt.clos_id)?,
            "l3cacheschema" => text(value, at, &mut rdt.l3_cache_schema)?,
            "membwschema" => text(value, at, &mut rdt.mem_bw_schema)?,
            "schemata" => list(value, at, &mut rdt.schemata, word)?,
            "enablecmt" => boolean(&value, at, &mut rdt.enable_cmt)?,
            "enablembm" => boolean(&value, at, &mut rdt.enable_mbm)?,
            "enablemonitoring" => boolean(&value, at, &mut rdt.enable_monitoring)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(rdt)
}

/// Calls a function for each member with its lower-case key, the value and the position. False means an unknown key.
fn members(
    node: Node,
    at: &str,
    each: &mut dyn FnMut(&str, Node, &str) -> Result<bool>,
) -> Result<()> {
    match node {
        Node::Null => Ok(()),
        Node::Map(members) => members.into_iter().try_for_each(|(key, value)| {
            let dot = if at.is_empty() { "" } else { "." };
            let place = format!("{at}{dot}{key}");
            if each(&key.to_ascii_lowercase(), value, &place)? {
                Ok(())
            } else {
                Err(located(at, &format!("unknown key \"{key}\"")))
            }
        }),
        other => Err(located(at, &format!("{}, not an object", other.kind()))),
    }
}

fn list<T>(
    node: Node,
    at: &str,
    into: &mut Vec<T>,
    item: impl Fn(Node, &str) -> Result<T>,
) -> Result<()> {
    match node {
        Node::Null => Ok(()),
        Node::List(nodes) => {
            *into = nodes
                .into_iter()
                .enumerate()
                .map(|(n, node)| item(node, &format!("{at}[{n}]")))
                .collect::<Result<_>>()?;
            Ok(())
        }
        other => Err(located(at, &format!("{}, not a list", other.kind()))),
    }
}

fn annotations(node: Node, at: &str, into: &mut Vec<(String, String)>) -> Result<()> {
    match node {
        Node::Null => Ok(()),
        Node::Map(members) => {
            *into = members
                .into_iter()
                .map(|(key, value)| {
                    let value = word(value, &format!("{at}.{key}"))?;
                    Ok((key, value))
                })
                .collect::<Result<_>>()?;
            Ok(())
        }
        other => Err(located(at, &format!("{}, not an object", other.kind()))),
    }
}

fn text(node: Node, at: &str, into: &mut String) -> Result<()> {
    if node != Node::Null {
        *into = word(node, at)?;
    }
    Ok(())
}

/// Decodes a string in a list, where null is the empty string.
fn word(node: Node, at: &str) -> Result<String> {
    match node {
        Node::Null => Ok(String::new()),
        node => node
            .into_text()
            .map_err(|node| located(at, &format!("{}, not text", node.kind()))),
    }
}

fn optional<T>(
    node: Node,
    at: &str,
    into: &mut Option<T>,
    value: impl Fn(Node, &str) -> Result<T>,
) -> Result<()> {
    if node != Node::Null {
        *into = Some(value(node, at)?);
    }
    Ok(())
}

fn number(node: &Node, at: &str, into: &mut i64) -> Result<()> {
    if *node != Node::Null {
        *into = whole_of(node, at)?;
    }
    Ok(())
}

#[allow(clippy::needless_pass_by_value)] // fits `optional`
fn whole(node: Node, at: &str) -> Result<i64> {
    whole_of(&node, at)
}

fn whole_of(node: &Node, at: &str) -> Result<i64> {
    let value = node
        .integer()
        .ok_or_else(|| located(at, &format!("{}, not a whole number", node.kind())))?;
    i64::try_from(value).map_err(|_| located(at, &format!("{value} is too large")))
}

/// Decodes a 32-bit number: an id or a file mode. Null in a list is 0.
#[allow(clippy::needless_pass_by_value)] // fits `list`
fn id(node: Node, at: &str) -> Result<u32> {
    if node == Node::Null {
        return Ok(0);
    }
    let value = whole_of(&node, at)?;
    u32::try_from(value).map_err(|_| located(at, &format!("{value} does not fit 32 bits")))
}

fn boolean(node: &Node, at: &str, into: &mut bool) -> Result<()> {
    match node {
        Node::Null => Ok(()),
        Node::Bool(value) => {
            *into = *value;
            Ok(())
        }
        other => Err(located(at, &format!("{}, not a boolean", other.kind()))),
    }
}

/// Rejects null if the schema has a list of objects.
fn present(node: &Node, at: &str) -> Result<()> {
    if *node == Node::Null {
        return Err(located(at, "null"));
    }
    Ok(())
}

fn located(at: &str, text: &str) -> Error {
    match at {
        "" => malformed(text),
        at => malformed(text).context(at),
    }
}
