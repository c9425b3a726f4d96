//! Edits containerd's configuration, versions 1 to 4.
//!
//! From version 2 on the runtime goes to a drop-in file, and the main file only imports it. Older containerd replaces a
//! plugin's section by that of an imported file instead of merging them, so the drop-in repeats the whole section.
//! Version 1 lacks such imports, so the main file is edited, and also if no drop-in is wanted.

mod drop_in;
mod hidden;
mod look;
mod section;

use std::path::Path;

use libnvc::Result;
use toml_edit::{DocumentMut, Item, value};

pub(crate) use drop_in::{import_covers, names, pattern_for, share_import, without};
pub(crate) use hidden::hidden;
pub(crate) use look::{import_patterns, is_drop_in_of_ours, registered};
use section::{BUILT_IN, cdi_key, keep_default, plugin_of, register, runtimes_of, version_of};

use super::change::Change;
use super::undo::Removal;
use super::{Files, Runtime, tables};

/// containerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/containerd/config.toml";
/// The drop-in file.
pub(crate) const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

/// Registers the runtime: changes to the drop-in, if there is one, and to the main file.
pub(crate) fn add(files: Files<'_>, runtime: &Runtime) -> Result<Vec<Change>> {
    let main = tables::parse(files.path, files.text.unwrap_or_default())?;
    let effective = match files.dumped {
        Some(text) => tables::parse(Path::new("containerd config dump"), text)?,
        None => main.clone(),
    };
    let version = version_of(&effective)?;
    match files.drop_in {
        Some(path) if version != 1 => {
            let text = drop_in::text(
                path,
                files.drop_in_text,
                &main,
                &effective,
                runtime,
                files.drops_default,
            )?;
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

/// Returns the program of a runtime that a text registers itself, rather than by an import.
pub(crate) fn program(path: &Path, text: &str, name: &str) -> Result<Option<String>> {
    Ok(registered(path, text)?.remove(name))
}

/// Returns true if a main file disables the CRI plugin, which provides runtimes to pods.
pub(crate) fn disables_cri(path: &Path, text: &str) -> bool {
    let names = [plugin_of(1), plugin_of(2), plugin_of(3)];
    let document = tables::parse(path, text).ok();
    let disabled = document.as_ref().and_then(|d| d.get("disabled_plugins"));
    let mut disabled = disabled.and_then(Item::as_array).into_iter().flatten();
    disabled.any(|name| name.as_str().is_some_and(|name| names.contains(&name)))
}

/// Returns true if a main file imports a drop-in.
pub(crate) fn imports(path: &Path, text: &str, drop_in: &Path) -> Result<bool> {
    Ok(drop_in::is_imported(&tables::parse(path, text)?, drop_in))
}

/// Removes the runtime from a main file, and the import of the drop-in, if given; the keys that [`add`] sets get their
/// values from the former text.
pub(crate) fn restore(
    path: &Path,
    text: &str,
    removal: Removal<'_>,
    drop_in: Option<&Path>,
) -> Result<Option<String>> {
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let old = removal.before.map(|text| tables::parse(path, text));
    let old = old.transpose()?;
    let old_item = |keys: &[&str]| {
        old.as_ref()
            .and_then(|old| tables::get(old.as_item(), keys).cloned())
    };
    let version = version_of(&document)?;
    let plugin = plugin_of(version);
    let name = removal.name;
    let root = document.as_table_mut();
    let runtime = [&runtimes_of(version)[..], &[name]].concat();
    let mut changed = changed_keys(version, name);
    if tables::get_in(root, &runtime).is_some() {
        tables::put_back(path, root, &runtime, old_item(&runtime))?;
        let default = ["plugins", plugin, "containerd", "default_runtime_name"];
        if tables::text_in(root, &default) == Some(name) {
            tables::put_back(path, root, &default, old_item(&default))?;
            let others = tables::get_in(root, &runtimes_of(version));
            let has_others = others
                .and_then(Item::as_table_like)
                .is_some_and(|t| !t.is_empty());
            if has_others && (old.is_none() || removal.others_stay) {
                keep_default(path, root, version)?;
                changed.push([&runtimes_of(version)[..], &[BUILT_IN]].concat());
            }
        }
        if old.is_some() && !removal.others_stay {
            for key in [cdi_key(version), &["plugins", plugin, "enable_cdi"][..]] {
                tables::put_back(path, root, key, old_item(key))?;
            }
        }
    }
    if let Some(drop_in) = drop_in {
        drop_in::unimport(root, drop_in, old_item(&["imports"]));
    }
    // A version alone is equivalent to no file.
    let only_version =
        root.iter().all(|(key, _)| key == "version") && old_item(&["version"]).is_none();
    (!only_version)
        .then(|| tables::checked(path, &original, &document, &changed))
        .transpose()
}

/// Returns the keys that [`add`] may set.
fn changed_keys(version: i64, name: &str) -> Vec<Vec<&str>> {
    let plugin = plugin_of(version);
    let section = ["plugins", plugin, "containerd"];
    vec![
        vec!["version"],
        vec!["imports"],
        [&section[..], &["default_runtime_name"]].concat(),
        [&runtimes_of(version)[..], &[name]].concat(),
        cdi_key(version).to_vec(),
        vec!["plugins", plugin, "enable_cdi"],
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
        document.insert("version", value(version));
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
