//! Refuses containers without a mount namespace of their own.
//!
//! The driver's files would be mounted on the host, and stay there when the container ends.

use std::os::unix::fs::MetadataExt as _;
use std::{fs, io};

use nvc_hostfile::cause;
use serde_json::Value;

use crate::error::{Result, refused};

/// Checks the namespaces in config.json.
///
/// # Errors
/// None of them is a mount namespace, or it is the one of this process, or that cannot be known.
pub(crate) fn check(spec: &Value) -> Result<()> {
    let namespaces = spec["linux"]["namespaces"].as_array();
    let mut all = namespaces.into_iter().flatten();
    let mount = all.find(|namespace| namespace["type"] == "mount");
    let is_own = match mount.map(|namespace| namespace["path"].as_str()) {
        None => false,
        Some(None | Some("")) => true,
        Some(Some(path)) => !is_this_one(path).map_err(|error| {
            let cause = cause::text(&error);
            refused(format!(
                "the container's mount namespace: stat {path}: {cause}"
            ))
        })?,
    };
    if is_own {
        return Ok(());
    }
    let error = refused(
        "the container has no mount namespace of its own: the driver's files would be mounted on the host",
    );
    Err(error.hint("add {\"type\": \"mount\"} to linux.namespaces in config.json"))
}

fn is_this_one(path: &str) -> io::Result<bool> {
    let id = |path: &str| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    Ok(id(path)? == id("/proc/self/ns/mnt")?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_needs_its_own() {
        let with = |namespaces: Value| json!({"linux": {"namespaces": namespaces}});
        for spec in [
            with(json!([{"type": "pid"}, {"type": "mount"}])),
            with(json!([{"type": "mount", "path": ""}])),
            // Of another container: whoever created it decides.
            with(json!([{"type": "mount", "path": "/proc/self/ns/pid"}])),
        ] {
            assert!(check(&spec).is_ok(), "{spec}");
        }
        for spec in [
            json!({}),
            json!({"linux": 7}),
            with(json!([{"type": "pid"}, {"type": "user"}])),
            with(json!([{"type": "mount", "path": "/proc/self/ns/mnt"}])),
            // Nobody knows which one it will be.
            with(json!([{"type": "mount", "path": "/no/such/namespace"}])),
        ] {
            assert!(check(&spec).is_err(), "{spec}");
        }
    }
}
