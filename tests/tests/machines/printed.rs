//! Prints what a container gets as lines: nodes, mounts, hooks, variables.

use std::fs;
use std::path::Path;

use nvc_testkit::driver::{Driver, NATIVE};
use serde_json::Value;

/// Replaces what differs between computers: `VER` is the driver's version, `LIB` Debian's multiarch directory.
pub(crate) fn plain(driver: &Driver, line: &str) -> String {
    let majors = driver.majors();
    let mut line = line
        .replace(&driver.profile().driver, "VER")
        .replace(&format!("usr/lib/{}", NATIVE.0), "LIB");
    let named = [
        (majors.caps, "CAPS"),
        (majors.imex, "IMEX"),
        (majors.uvm, "UVM"),
    ];
    for (major, name) in named {
        line = line.replace(&format!("({major}:"), &format!("({name}:"));
    }
    line
}

/// Returns the last line of messages that is no hint, without the program and the time.
pub(crate) fn error(messages: &str) -> String {
    let without_program = |line: &str| {
        let is_program = |(name, _): &(&str, &str)| name.starts_with("nvidia-");
        let found = line.split_once(": ").filter(is_program);
        found.map_or(line, |(_, text)| text).to_owned()
    };
    let texts = messages.lines().map(without_program);
    let mut texts = texts.filter(|text| !text.trim().is_empty() && !text.starts_with("hint: "));
    let last = texts.next_back().unwrap_or("no message".into());
    let text = last.split_once("msg=").map_or(&*last, |(_, text)| text);
    format!("error: {}", text.trim_matches('"').replace("\\\"", "\""))
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// A path of the host, and the container's if it is another.
fn from_to(kind: &str, host: &str, container: &str) -> String {
    if host.is_empty() || host == container {
        format!("{kind} {container}")
    } else {
        format!("{kind} {host} at {container}")
    }
}

/// A hook, each option in a line.
fn hook(hook: &Value) -> Vec<String> {
    let mut words = list(hook, "args").filter_map(Value::as_str).skip(1);
    let mut lines = vec![format!("hook {}", words.next().unwrap_or_default())];
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if let Some(plan) = word.strip_prefix("--plan=") {
            let plan: Value = serde_json::from_str(plan).unwrap();
            lines.extend(list(&plan, "intents").map(|intent| format!("    {}", planned(intent))));
            continue;
        }
        let value = words.next_if(|next| word.starts_with("--") && !next.starts_with("--"));
        match value {
            Some(value) => lines.push(format!("    {word} {value}")),
            None => lines.push(format!("    {word}")),
        }
    }
    lines
}

/// An intent of a plan: its kind, and its parts that are not the usual ones.
fn planned(intent: &Value) -> String {
    let place = |place: &Value| {
        let (kind, name) = place
            .as_object()
            .and_then(|place| place.iter().next())
            .unwrap();
        let name = name.as_str().unwrap();
        match kind.as_str() {
            "at" => name.to_owned(),
            kind => format!("{kind}:{name}"),
        }
    };
    match text(intent, "intent") {
        "mount" => from_to("mount", text(intent, "source"), &place(&intent["place"])),
        "link" => format!(
            "link {} to {}",
            place(&intent["at"]),
            text(intent, "target")
        ),
        "alias" => format!("alias {} of {}", text(intent, "at"), place(&intent["of"])),
        "library-path" => {
            let places: Vec<String> = list(intent, "directories").map(place).collect();
            format!("library-path {}", places.join(" "))
        }
        "cuda-compat" => format!(
            "cuda-compat {} after {}",
            text(intent, "how"),
            text(intent, "host_driver")
        ),
        "driver-proc" => format!("driver-proc {}", text(intent, "devices")),
        "egl-profile" => format!("egl-profile {}", text(intent, "devices")),
        kind => {
            let daemons = list(intent, "daemons").filter_map(Value::as_str);
            format!("{kind} {}", daemons.collect::<Vec<_>>().join(" "))
        }
    }
}

/// Edits of a specification.
fn edits(edits: &Value) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let env = list(edits, "env").filter_map(Value::as_str);
    lines.extend(env.map(|entry| format!("env {entry}")));
    let nodes = list(edits, "deviceNodes");
    lines.extend(nodes.map(|node| from_to("node", text(node, "hostPath"), text(node, "path"))));
    let mounts = list(edits, "mounts");
    lines.extend(mounts.map(|m| from_to("mount", text(m, "hostPath"), text(m, "containerPath"))));
    lines.extend(list(edits, "hooks").flat_map(hook));
    lines
}

/// A specification.
pub(crate) fn specification(specification: &Value) -> Vec<String> {
    let mut lines = vec!["every device:".to_owned()];
    let indented = |value: &Value| edits(value).into_iter().map(|line| format!("    {line}"));
    lines.extend(indented(&specification["containerEdits"]));
    for device in list(specification, "devices") {
        lines.push(format!("device {}:", text(device, "name")));
        lines.extend(indented(&device["containerEdits"]));
    }
    lines
}

/// What is new in a container's configuration.
pub(crate) fn container(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let old: Vec<&Value> = list(&before["process"], "env").collect();
    let env = list(&after["process"], "env").filter(|entry| !old.contains(entry));
    lines.extend(
        env.filter_map(Value::as_str)
            .map(|entry| format!("env {entry}")),
    );
    let nodes = list(&after["linux"], "devices");
    lines.extend(nodes.map(|node| format!("node {}", text(node, "path"))));
    let mounts = list(after, "mounts");
    lines.extend(mounts.map(|m| from_to("mount", text(m, "source"), text(m, "destination"))));
    let hooks = after["hooks"].as_object().into_iter().flatten();
    for (stage, hooks) in hooks {
        for entry in hooks.as_array().into_iter().flatten() {
            let mut own = hook(entry);
            own[0] += &format!(" ({stage})");
            lines.extend(own);
        }
    }
    lines
}

/// The mounts of a mountinfo below the container's root that come from the machine, or are new.
pub(crate) fn mounts(mountinfo: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let mut words = line.split(' ').skip(3);
        let (source, target) = (words.next()?, words.next()?);
        let target = target.strip_prefix("/bundle/rootfs")?;
        // The container's own procfs has the kernel's files of the driver.
        if matches!(target, "" | "/proc" | "/proc/driver" | "/proc/devices") {
            return None;
        }
        match source.split_once("/machine/") {
            Some((_, path)) => Some(from_to("mount", &format!("/{path}"), target)),
            None => Some(format!("tmpfs at {target}")),
        }
    };
    mountinfo.lines().filter_map(of_line).collect()
}

/// The links below a directory of a root, in order.
pub(crate) fn links(root: &Path, directory: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root.join(directory))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut lines = Vec::new();
    for name in names {
        let path = format!("{directory}/{name}");
        let path = path.trim_start_matches('/');
        match fs::read_link(root.join(path)) {
            Ok(target) => lines.push(format!("link /{path} to {}", target.display())),
            Err(_) => lines.extend(links(root, path)),
        }
    }
    lines
}
