//! Edits the CRI plugin's section of containerd's configuration: the runtimes, and which one is the default.

use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use toml_edit::{DocumentMut, Item, Table, value};

use crate::engine::Runtime;
use crate::engine::tables::{self, Layout};
use crate::toml_values;

/// containerd's runtime if its configuration names none.
pub(super) const BUILT_IN: &str = "runc";
/// The version assumed for a missing file.
pub(super) const NEW_VERSION: i64 = 2;

/// Returns the version of a configuration: 2 if it is empty, 1 if it has no version.
pub(super) fn version_of(document: &DocumentMut) -> Result<i64> {
    match document.get("version") {
        None if document.as_table().is_empty() => Ok(NEW_VERSION),
        None => Ok(1),
        Some(item) => item.as_integer().ok_or_else(|| {
            Error::new(
                ErrorKind::Malformed,
                "version of containerd's configuration is not a number",
            )
        }),
    }
}

/// Returns the name of the CRI plugin.
pub(super) fn plugin_of(version: i64) -> &'static str {
    match version {
        1 => "cri",
        2 => "io.containerd.grpc.v1.cri",
        _ => "io.containerd.cri.v1.runtime",
    }
}

/// Returns where a configuration of a version has its runtimes.
pub(super) fn layout(version: i64) -> Layout {
    let of = |key| vec!["plugins", plugin_of(version), "containerd", key];
    Layout {
        runtimes: of("runtimes"),
        default: of("default_runtime_name"),
        program: &["options", "BinaryName"],
    }
}

/// Returns the key that enables CDI.
pub(super) fn cdi_key(version: i64) -> Vec<&'static str> {
    match version {
        1 => vec!["plugins", "cri", "containerd", "enable_cdi"],
        _ => vec!["plugins", plugin_of(version), "enable_cdi"],
    }
}

/// Adds the built-in default runtime to a configuration that does not name it.
pub(super) fn keep_default(path: &Path, document: &mut DocumentMut, version: i64) -> Result<()> {
    let layout = layout(version);
    let default = layout.default_runtime(document);
    if default.is_some_and(|name| name != BUILT_IN) {
        return Ok(()); // the user's own, or ours
    }
    let runtimes = tables::table(path, document.as_table_mut(), &layout.runtimes)?;
    if runtimes.get(BUILT_IN).is_none() {
        let entry = tables::table(path, runtimes, &[BUILT_IN])?;
        tables::set(entry, "runtime_type", "io.containerd.runc.v2");
    }
    Ok(())
}

/// Adds the runtime's table, with the options of the runtime that containers use otherwise.
pub(super) fn register(
    path: &Path,
    document: &mut DocumentMut,
    version: i64,
    runtime: &Runtime,
) -> Result<()> {
    let layout = layout(version);
    let containerd = tables::get(document.as_item(), &layout.runtimes[..3]);
    let options = options_of_default(containerd, &[&runtime.name]);
    let root = document.as_table_mut();
    let containerd = tables::table(path, root, &layout.runtimes[..3])?;
    if runtime.set_as_default {
        tables::set(containerd, "default_runtime_name", runtime.name.as_str());
    }
    let runtimes = tables::table(path, containerd, &["runtimes"])?;
    if runtimes.get(&runtime.name).is_none() {
        let options = options.unwrap_or_else(own_options);
        toml_values::insert(runtimes, &runtime.name, options);
    }
    let entry = tables::table(path, runtimes, &[&runtime.name])?;
    // With an empty type containerd has no shim to start.
    let kind = entry.get("runtime_type");
    if kind.is_none_or(|kind| kind.as_str() == Some("")) {
        tables::set(entry, "runtime_type", "io.containerd.runc.v2");
    }
    let options = tables::table(path, entry, &["options"])?;
    tables::set(options, "BinaryName", runtime.path.as_str());
    if version == 1 {
        tables::set(options, "Runtime", runtime.path.as_str());
    }
    let key = cdi_key(version);
    if let (true, Some((key, above))) = (runtime.enable_cdi, key.split_last()) {
        tables::set(tables::table(path, root, above)?, key, true);
    }
    Ok(())
}

/// Returns the options of the default runtime in the table `containerd`, unless that is one of our `own`, or of runc or
/// crun, whichever exists first.
pub(super) fn options_of_default(containerd: Option<&Item>, own: &[&str]) -> Option<Item> {
    let default = containerd.and_then(|table| tables::text(table, &["default_runtime_name"]));
    let runtimes = containerd.and_then(|table| tables::get(table, &["runtimes"]));
    tables::options_of_default(runtimes, default, own)
}

/// Returns the options for a configuration without a runtime to copy them from.
fn own_options() -> Item {
    let mut table = Table::new();
    table.insert("runtime_type", value("io.containerd.runc.v2"));
    table.insert("runtime_root", value(""));
    table.insert("runtime_engine", value(""));
    table.insert("privileged_without_host_devices", value(false));
    Item::Table(table)
}
