//! Reads the runtimes and imports of a configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libnvc::Result;
use toml_edit::{Item, Value};

use super::section::{runtimes_of, version_of};
use crate::engine::tables;

/// Returns the runtimes that a text registers itself, with their programs.
pub(crate) fn registered(path: &Path, text: &str) -> Result<BTreeMap<String, String>> {
    let document = tables::parse(path, text)?;
    let runtimes = runtimes_of(version_of(&document)?);
    Ok(tables::programs(
        &document,
        &runtimes,
        &["options", "BinaryName"],
    ))
}

/// Returns the program of a runtime's entry.
pub(super) fn program(entry: &Item) -> &str {
    tables::text(entry, &["options", "BinaryName"]).unwrap_or_default()
}

/// Returns the patterns of the files that a main file imports, which can be relative to its directory; None if it does not
/// say.
pub(crate) fn import_patterns(path: &Path, text: &str) -> Result<Option<Vec<PathBuf>>> {
    let document = tables::parse(path, text)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let imports = document.get("imports").and_then(Item::as_array);
    Ok(imports.map(|imports| {
        let patterns = imports.iter().filter_map(Value::as_str);
        patterns.map(|pattern| directory.join(pattern)).collect()
    }))
}

/// Returns true if a text has nothing but what [`add`](super::add) writes into a drop-in.
pub(crate) fn is_drop_in_of_ours(path: &Path, text: &str) -> bool {
    let Ok(document) = tables::parse(path, text) else {
        return false;
    };
    let is_known = |key: &str| matches!(key, "version" | "plugins");
    let plugins = document.get("plugins").and_then(Item::as_table_like);
    document.iter().all(|(key, _)| is_known(key)) && plugins.is_some_and(|table| table.len() == 1)
}
