//! Adds our prestart hook to config.json, and removes it.

use std::path::{Path, PathBuf};

use libnvc::host::Inventory;
use libnvc::request::MAX_NAMES;
use nvc_hostfile::{ours, programs};
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use serde_json::{Value, json};

use crate::error::Result;
use crate::place::Place;

/// The hook's current and former name.
const NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Options by which our hook receives what the runtime has resolved; see nvc-hook's arguments.
const DEVICES: &str = "--devices=";
const INVENTORY: &str = "--nvml=";
const BUNDLE: &str = "--bundle=";
const SPECIFICATION: &str = "--config-json=";

/// What the runtime has resolved; empty if it could not query the driver.
#[derive(Debug, Default)]
pub(crate) struct ResolvedDevices {
    /// UUIDs of the devices, or `all`.
    pub devices: Vec<String>,
    /// NVML's answers about them.
    pub inventory: Option<Inventory>,
}

/// Appends the hook, unless it is already there. Our own hook gets what was resolved in arguments, which an image
/// cannot set; a foreign one reads the container's environment. It also gets the paths of the container's files if the
/// state on its standard input lacks them: in a user namespace crun 1.8 reports `/` as the bundle, and it never reports
/// which file it has read.
pub(crate) fn add(
    spec: &mut Spec,
    hook: &Path,
    resolved: &ResolvedDevices,
    told: Option<&Place>,
) -> Result<()> {
    let hooks = spec.list(&["hooks", "prestart"])?;
    let path = hook.to_string_lossy();
    // A configured hook can have any name.
    let is_there = |entry: &Value| is_ours(entry) || entry["path"] == *path;
    if !hooks.iter().any(is_there) {
        let name = hook.file_name().unwrap_or(hook.as_os_str());
        hooks.push(json!({
            "path": path,
            "args": [name.to_string_lossy(), "prestart"],
        }));
    }
    let own = std::env::current_exe().unwrap_or_default();
    for entry in hooks.iter_mut().filter(|entry| is_there(entry)) {
        let program = Path::new(entry["path"].as_str().unwrap_or_default());
        if ours::is_ours(program, NAMES[0], &own) {
            hand_over(entry, resolved, told);
        }
    }
    Ok(())
}

/// Appends the hook's options to its arguments. Those of an earlier run are removed in any case: they may be outdated.
fn hand_over(entry: &mut Value, resolved: &ResolvedDevices, told: Option<&Place>) {
    let Some(words) = without_options(entry) else {
        return;
    };
    // A longer list can only be `all` of an enormous machine, which the hook understands too.
    if !resolved.devices.is_empty() && resolved.devices.len() <= MAX_NAMES {
        words.push(json!(format!("{DEVICES}{}", resolved.devices.join(","))));
    }
    if let Some(inventory) = &resolved.inventory {
        words.push(json!(format!("{INVENTORY}{inventory}")));
    }
    if let Some(Place { bundle, file }) = told {
        for (option, path) in [(BUNDLE, bundle), (SPECIFICATION, file)] {
            let path = std::path::absolute(path).ok();
            if let Some(path) = path.as_deref().and_then(Path::to_str) {
                words.push(json!(format!("{option}{path}")));
            }
        }
    }
}

/// Removes the options of an earlier run from the hook's arguments, and returns these.
fn without_options(entry: &mut Value) -> Option<&mut Vec<Value>> {
    let is_option = |word: &str| {
        [DEVICES, INVENTORY, BUNDLE, SPECIFICATION]
            .iter()
            .any(|name| word.starts_with(name))
    };
    let words = entry.get_mut("args")?.as_array_mut()?;
    words.retain(|word| !word.as_str().is_some_and(is_option));
    Some(words)
}

/// Removes what an earlier run has told the hook.
pub(crate) fn forget(spec: &mut Spec) -> Result<()> {
    if spec.has(&["hooks", "prestart"]) {
        let hooks = spec.list(&["hooks", "prestart"])?;
        for hook in hooks.iter_mut().filter(|hook| is_ours(hook)) {
            without_options(hook);
        }
    }
    Ok(())
}

/// Removes the hook, wherever the engine put it.
pub(crate) fn remove(spec: &mut Spec) -> Result<()> {
    if spec.has(&["hooks", "prestart"]) {
        let hooks = spec.list(&["hooks", "prestart"])?;
        hooks.retain(|hook| !is_ours(hook));
    }
    Ok(())
}

/// Returns true if an entry of a list of hooks is the hook.
fn is_ours(hook: &Value) -> bool {
    let path = hook.get("path").and_then(Value::as_str);
    let name = path.and_then(|path| Path::new(path).file_name());
    name.is_some_and(|name| NAMES.iter().any(|ours| name == *ours))
}

/// Returns the hook's path: as configured, or in the usual directories.
pub(crate) fn hook_path(config: &Config) -> PathBuf {
    resolve(&config.hook.path, "/usr/bin/nvidia-container-runtime-hook")
}

/// Returns an absolute path unchanged; looks up a name.
pub(crate) fn resolve(path: &str, otherwise: &str) -> PathBuf {
    if path.starts_with('/') {
        return path.into();
    }
    let directories = programs::directories(std::env::var_os("PATH").as_deref());
    let found = match path {
        "" => None,
        name => programs::find(name, &directories),
    };
    found.unwrap_or_else(|| otherwise.into())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use libnvc::host::DriverVersions;

    use super::*;

    #[test]
    fn devices_are_handed_over_once() {
        let mut entry =
            json!({"path": "/h", "args": ["h", "prestart", "--devices=GPU-1", "x", "--nvml={}"]});
        let versions = DriverVersions {
            driver: "535".into(),
            cuda: "12.2".into(),
        };
        let resolved = ResolvedDevices {
            devices: vec!["GPU-2".to_owned(), "MIG-3".to_owned()],
            inventory: Inventory::new(&versions, &[], SystemTime::UNIX_EPOCH),
        };
        let inventory = r#"--nvml={"version":2,"time":0,"driver":"535","cuda":12020,"gpus":[]}"#;
        for _ in 0..2 {
            hand_over(&mut entry, &resolved, None);
            let expected = json!(["h", "prestart", "x", "--devices=GPU-2,MIG-3", inventory]);
            assert_eq!(entry["args"], expected);
        }
        let place = Place {
            bundle: "/b".into(),
            file: "/c/./d.json".into(),
        };
        for _ in 0..2 {
            hand_over(&mut entry, &ResolvedDevices::default(), Some(&place));
            let expected = json!([
                "h",
                "prestart",
                "x",
                "--bundle=/b",
                "--config-json=/c/d.json"
            ]);
            assert_eq!(entry["args"], expected);
        }
        hand_over(&mut entry, &ResolvedDevices::default(), None);
        assert_eq!(entry["args"], json!(["h", "prestart", "x"]));
        let mut odd = json!({"path": "/h"});
        hand_over(&mut odd, &resolved, Some(&place));
        assert_eq!(odd, json!({"path": "/h"}));
    }
}
