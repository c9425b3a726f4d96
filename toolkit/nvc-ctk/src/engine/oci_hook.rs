//! Writes the hook file for the hooks directories of Podman and CRI-O.

use std::path::Path;

use libnvc::STANDARD_PATH;
use serde_json::json;

/// Directories whose hooks podman runs in every container, and CRI-O too.
pub(crate) const DIRECTORIES: [&str; 2] = [
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
];

/// Returns the text of the file for a hook program.
pub(crate) fn text(hook: &str) -> String {
    let path = Path::new(hook);
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let directory = path.parent().map(|parent| parent.display().to_string());
    let directory = directory
        .as_deref()
        .filter(|directory| !directory.is_empty() && !STANDARD_PATH.contains(directory));
    let search: Vec<&str> = STANDARD_PATH.into_iter().chain(directory).collect();
    let value = json!({
        "version": "1.0.0",
        "hook": {
            "path": hook,
            "args": [name.unwrap_or_default(), "prestart"],
            "env": [format!("PATH={}", search.join(":"))],
        },
        "when": { "always": true, "commands": [".*"] },
        "stages": ["prestart"],
    });
    format!("{value:#}\n")
}
