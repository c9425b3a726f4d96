//! Edits containerd's configuration, versions 1 to 4.
//!
//! From version 2 on the runtime goes to a drop-in file, and the main file only imports it. containerd 1.x takes a
//! plugin's section from the last file that has it, and does not merge, so up to version 2 the drop-in repeats the whole
//! section. From version 3 on, which only containerd 2 reads, it has our keys alone. Version 1 lacks such imports, so the
//! main file is edited, and also if no drop-in is wanted.

mod drop_in;
mod hidden;
mod look;
mod section;

use std::path::{Path, PathBuf};

use libnvc::Result;
use toml_edit::{DocumentMut, Item, value};

use super::change::Change;
use super::{Files, IsRemoved, Removed, Runtime, matching, tables};
use crate::ask::{ask, version_in};
pub(crate) use drop_in::{is_copy, pattern_for, with_default_of_others};
pub(crate) use hidden::hidden;
use look::import_patterns;
pub(crate) use look::{is_drop_in_of_ours, registered};
use section::{
    BUILT_IN, NEW_VERSION, cdi_key, keep_default, plugin_of, register, runtimes_of, version_of,
};

/// containerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/containerd/config.toml";
/// The drop-in file.
pub(crate) const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

/// Returns the drop-in of a main file.
pub(crate) fn drop_in_beside(config: &Path) -> PathBuf {
    config.with_file_name("conf.d").join("99-nvidia.toml")
}

/// Registers the runtime: changes to the drop-in, if there is one, and to the main file.
pub(crate) fn add(files: Files<'_>, runtime: &Runtime) -> Result<Vec<Change>> {
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
    match files.drop_in {
        Some(path) if version != 1 => {
            let dumped = match dumped {
                Some(dumped) if version_of(&dumped)? == version => Some(dumped),
                _ => None,
            };
            let text = drop_in::text(path, files, version, &main, dumped.as_ref(), runtime)?;
            let main = drop_in::import(files.path, main, version, path)?;
            Ok(vec![
                Change {
                    path: path.into(),
                    before: files.drop_in_text.map(Into::into),
                    after: Some(text),
                },
                Change {
                    path: files.path.into(),
                    before: files.text.map(Into::into),
                    after: Some(main),
                },
            ])
        }
        _ => Ok(vec![Change {
            path: files.path.into(),
            before: files.text.map(Into::into),
            after: Some(edited(files.path, main, runtime, files.drops_default)?),
        }]),
    }
}

/// Returns true if a main file disables the CRI plugin, which provides runtimes to pods.
pub(crate) fn disables_cri(path: &Path, text: &str) -> bool {
    let names = [plugin_of(1), plugin_of(2), plugin_of(3)];
    let document = tables::parse(path, text).ok();
    let disabled = document.as_ref().and_then(|d| d.get("disabled_plugins"));
    let mut disabled = disabled.and_then(Item::as_array).into_iter().flatten();
    disabled.any(|name| name.as_str().is_some_and(|name| names.contains(&name)))
}

/// Returns the runtime that a text makes the default.
pub(crate) fn default_runtime(path: &Path, text: &str) -> Result<Option<String>> {
    let document = tables::parse(path, text)?;
    let key = default_key(version_of(&document)?);
    Ok(tables::text(document.as_item(), &key).map(Into::into))
}

/// Returns the files that a main file imports and that exist, in containerd's order. If it does not say, then from version
/// 2.2 on those of the directory of our drop-in.
pub(crate) fn imported(path: &Path, text: &str) -> Result<Vec<PathBuf>> {
    let usual = || match version("containerd") {
        Some(version) if version >= vec![2, 2] => vec![Path::new(DROP_IN).with_file_name("*.toml")],
        _ => Vec::new(),
    };
    let patterns = import_patterns(path, text)?.unwrap_or_else(usual);
    Ok(patterns
        .iter()
        .flat_map(|pattern| matching(pattern))
        .collect())
}

/// Returns the version of the installed containerd.
pub(crate) fn version(program: &str) -> Option<Vec<u32>> {
    version_in(&ask(program, &["--version"]).ok()?)
}

/// Removes runtimes from a file, and a default runtime that is one of them.
pub(crate) fn remove(path: &Path, text: &str, is_removed: &IsRemoved<'_>) -> Result<Removed> {
    let names = registered(path, text)?.into_iter();
    let names = names.filter(|(name, program)| is_removed(name, program));
    let names: Vec<String> = names.map(|(name, _)| name).collect();
    if names.is_empty() {
        return Ok(Removed {
            text: Some(text.into()),
            names,
            had_default: false,
        });
    }
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let version = version_of(&document)?;
    let root = document.as_table_mut();
    let mut changed = Vec::new();
    for name in &names {
        let keys = [&runtimes_of(version)[..], &[name]].concat();
        tables::remove(root, &keys);
        changed.push(keys);
    }
    let default = default_key(version);
    let is_default = |name: &str| names.iter().any(|removed| removed == name);
    let had_default = tables::text_in(root, &default).is_some_and(is_default);
    if had_default {
        tables::remove(root, &default);
        changed.push(default.to_vec());
        let others = tables::get_in(root, &runtimes_of(version)).and_then(Item::as_table_like);
        if others.is_some_and(|table| !table.is_empty()) {
            keep_default(path, root, version)?;
            changed.push([&runtimes_of(version)[..], &[BUILT_IN]].concat());
        }
    }
    Ok(Removed {
        text: Some(tables::checked(path, &original, &document, &changed)?),
        names,
        had_default,
    })
}

/// Removes the import of a drop-in from a main file, if the list has it as [`add`] writes it.
pub(crate) fn without_import(path: &Path, text: &str, drop_in: &Path) -> Result<String> {
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let root = document.as_table_mut();
    if !drop_in::unimport(root, drop_in) {
        return Ok(text.into());
    }
    tables::checked(path, &original, &document, &[vec!["imports"]])
}

/// Returns the key of the default runtime.
fn default_key(version: i64) -> [&'static str; 4] {
    [
        "plugins",
        plugin_of(version),
        "containerd",
        "default_runtime_name",
    ]
}

/// Returns the keys that [`add`] may set.
fn changed_keys(version: i64, name: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["version"],
        vec!["imports"],
        default_key(version).to_vec(),
        [&runtimes_of(version)[..], &[name]].concat(),
        cdi_key(version).to_vec(),
    ]
}

/// Returns the main file with the runtime.
fn edited(
    path: &Path,
    mut document: DocumentMut,
    runtime: &Runtime,
    drops_default: bool,
) -> Result<String> {
    let version = version_of(&document)?;
    let original = document.clone();
    if document.as_table().is_empty() {
        document.insert("version", value(NEW_VERSION));
    }
    register(path, document.as_table_mut(), version, runtime)?;
    if drops_default {
        keep_default(path, document.as_table_mut(), version)?;
    }
    let mut changed = changed_keys(version, &runtime.name);
    if drops_default {
        changed.push([&runtimes_of(version)[..], &[BUILT_IN]].concat());
    }
    tables::checked(path, &original, &document, &changed)
}
