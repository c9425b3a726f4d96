//! Adds our prestart hook to config.json, and removes it.

use std::path::{Path, PathBuf};

use nvc_toolkit::config::Config;
use nvc_toolkit::oci::spec::Spec;
use nvc_toolkit::programs;
use serde_json::{Value, json};

/// The hook's current and former name.
const NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Appends the hook, unless it is already there.
pub(crate) fn add(spec: &mut Spec, hook: &Path) -> Result<(), String> {
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
    Ok(())
}

/// Removes the hook, wherever the engine put it.
pub(crate) fn remove(spec: &mut Spec) -> Result<(), String> {
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
