//! Edits containerd's configuration, versions 1 to 4.
//!
//! From version 2 on the runtime goes to a drop-in file, and the main file only imports it. containerd 1.x takes a
//! plugin's section from the last file that has it, and does not merge, so up to version 2 the drop-in repeats the whole
//! section. From version 3 on, which only containerd 2 reads, it has our keys alone. Version 1 lacks such imports, so the
//! main file is edited, and also if no drop-in is wanted.

mod drop_in;
mod hidden;
mod section;

use std::path::{Path, PathBuf};

use libnvc::Result;
use toml_edit::{DocumentMut, Item, Value, value};

use super::tables::{self, Layout};
use super::{Files, IsRemoved, Removed, Runtime, Text, matching};
use crate::ask::{ask, version_in};
pub(crate) use drop_in::{is_copy, pattern_for, without_import};
pub(crate) use hidden::hidden;
use section::{
    BUILT_IN, NEW_VERSION, cdi_key, keep_default, layout, plugin_of, register, version_of,
};

/// containerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/containerd/config.toml";
/// The drop-in file.
pub(crate) const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

/// Returns the drop-in of a main file.
pub(crate) fn drop_in_beside(config: &Path) -> PathBuf {
    config.with_file_name("conf.d").join("99-nvidia.toml")
}

/// Registers the runtime: returns the texts of the drop-in, if there is one, and of the main file.
pub(crate) fn add(files: Files<'_>, runtime: &Runtime) -> Result<Vec<Text>> {
    let main = tables::parse(files.path, files.text.unwrap_or_default())?;
    let dumped = files
        .dumped
        .map(|text| tables::parse(Path::new("containerd config dump"), text));
    let dumped = dumped.transpose()?;
    // A file that imports another must have its version. containerd says the version that it has made of the file's.
    let version = match &dumped {
        Some(dumped) if main.is_empty() => version_of(dumped)?,
        _ => version_of(&main)?,
    };
    let Some(path) = files.drop_in.filter(|_| version != 1) else {
        return Ok(vec![Text::new(files.path, edited(files, main, runtime)?)]);
    };
    let dumped = dumped.filter(|dumped| version_of(dumped).is_ok_and(|made| made == version));
    let own = drop_in::text(path, files, version, &main, dumped.as_ref(), runtime)?;
    let main = drop_in::import(files.path, main, version, path)?;
    Ok(vec![Text::new(path, own), Text::new(files.path, main)])
}

/// Returns true if a main file disables the CRI plugin, which provides runtimes to pods.
pub(crate) fn disables_cri(path: &Path, text: &str) -> bool {
    let names = [plugin_of(1), plugin_of(2), plugin_of(3)];
    let document = tables::parse(path, text).ok();
    let disabled = document.as_ref().and_then(|d| d.get("disabled_plugins"));
    let mut disabled = disabled.and_then(Item::as_array).into_iter().flatten();
    disabled.any(|name| name.as_str().is_some_and(|name| names.contains(&name)))
}

/// Returns where a document has its runtimes.
pub(super) fn layout_of(document: &DocumentMut) -> Result<Layout> {
    Ok(layout(version_of(document)?))
}

/// Returns the files that a main file imports and that exist, in containerd's order; patterns can be relative to its
/// directory. If it does not say, then from version 2.2 on those of the directory of our drop-in.
pub(crate) fn imported(path: &Path, text: &str) -> Result<Vec<PathBuf>> {
    let document = tables::parse(path, text)?;
    let imports = document.get("imports").and_then(Item::as_array);
    let Some(imports) = imports else {
        let has_usual = version("containerd").is_some_and(|version| version >= vec![2, 2]);
        let usual = has_usual.then(|| Path::new(DROP_IN).with_file_name("*.toml"));
        return Ok(usual.iter().flat_map(|pattern| matching(pattern)).collect());
    };
    let patterns = imports.iter().filter_map(Value::as_str);
    let patterns = patterns.map(|pattern| path.with_file_name(pattern));
    Ok(patterns.flat_map(|pattern| matching(&pattern)).collect())
}

/// Returns true if a text has nothing but what [`add`] writes into a drop-in.
pub(crate) fn is_drop_in_of_ours(path: &Path, text: &str) -> bool {
    let Ok(document) = tables::parse(path, text) else {
        return false;
    };
    let plugins = document.get("plugins").and_then(Item::as_table_like);
    let mut keys = document.iter().map(|(key, _)| key);
    keys.all(|key| matches!(key, "version" | "plugins"))
        && plugins.is_some_and(|all| all.len() == 1)
}

/// Returns the version of the installed containerd.
pub(crate) fn version(program: &str) -> Option<Vec<u32>> {
    version_in(&ask(program, &["--version"]).ok()?)
}

/// Removes runtimes from a file, and a default runtime that is one of them. containerd 1.x has no built-in runtime beside
/// others.
pub(crate) fn remove(path: &Path, text: &str, is_removed: &IsRemoved<'_>) -> Result<Removed> {
    let document = tables::parse(path, text)?;
    let version = version_of(&document)?;
    let mut removed = layout(version).remove(path, &document, is_removed)?;
    if let Some(text) = removed.text.as_mut().filter(|_| removed.had_default) {
        let mut document = tables::parse(path, text)?;
        if !layout(version).registered(&document).is_empty() {
            keep_default(path, &mut document, version)?;
            *text = document.to_string();
        }
    }
    Ok(removed)
}

/// Returns the main file with the runtime.
fn edited(files: Files<'_>, mut document: DocumentMut, runtime: &Runtime) -> Result<String> {
    let version = version_of(&document)?;
    let original = document.clone();
    if document.as_table().is_empty() {
        document.insert("version", value(NEW_VERSION));
    }
    register(files.path, &mut document, version, runtime)?;
    let layout = layout(version);
    let mut changed = vec![vec!["version"], layout.default.clone(), cdi_key(version)];
    changed.push(layout.entry(&runtime.name));
    if files.drops_default {
        keep_default(files.path, &mut document, version)?;
        changed.push(layout.entry(BUILT_IN));
    }
    tables::checked(files.path, &original, &document, &changed)
}
