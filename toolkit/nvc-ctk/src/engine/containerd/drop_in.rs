//! Edits containerd's drop-in file, and the main file's import of it.
//!
//! The file is ours. Several names share it, so registering one keeps the others.

use std::path::Path;

use libnvc::Result;
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::section::{
    cdi_key, keep_default, options_of_default, plugin_of, register, runtimes_of, version_of,
};
use super::{default_key, look::program};
use crate::engine::{Files, Runtime, tables};
use crate::toml_values;

/// The first version whose files containerd merges.
const FIRST_MERGED: i64 = 3;

/// Builds the drop-in: the version, up to version 2 the plugin's section as it is otherwise, and our runtimes in it: the
/// given one, and those that the file has besides. `dumped` is containerd's own account of its configuration, if that has
/// the same version.
pub(super) fn text(
    path: &Path,
    files: Files<'_>,
    version: i64,
    main: &DocumentMut,
    dumped: Option<&DocumentMut>,
    runtime: &Runtime,
) -> Result<String> {
    let section = match dumped {
        Some(dumped) => section(dumped, version),
        None => last_section(files, version, main)?,
    };
    let mut others = match files.drop_in_text {
        Some(text) => registered(path, text, section.as_ref())?,
        None => Vec::new(),
    };
    others.retain(|other| other.name != runtime.name);
    let mut names: Vec<String> = others.iter().map(|other| other.name.clone()).collect();
    names.push(runtime.name.clone());
    names.sort();
    let mut document = DocumentMut::new();
    document.insert("version", value(version));
    let mut around = DocumentMut::new();
    if let Some(section) = section {
        let mut plugins = Table::new();
        plugins.set_implicit(true);
        plugins.insert(plugin_of(version), section);
        around.insert("plugins", Item::Table(plugins));
    }
    let options = options_of_default(around.as_table(), version, &names);
    let is_default_of_others = |name: &str| {
        let default = tables::text(around.as_item(), &default_key(version));
        version < FIRST_MERGED && default == Some(name)
    };
    if version < FIRST_MERGED
        && let Some(plugins) = around.get("plugins")
    {
        document.insert("plugins", plugins.clone());
    }
    let root = document.as_table_mut();
    // An entry of an earlier call would keep old options: the default runtime's are copied again.
    if options.is_some() {
        for name in &names {
            tables::remove(root, &[&runtimes_of(version)[..], &[name]].concat());
        }
    }
    for mut other in others {
        other.set_as_default &= !runtime.set_as_default && !is_default_of_others(&other.name);
        add(path, root, version, &other, options.as_ref())?;
    }
    add(path, root, version, runtime, options.as_ref())?;
    if files.drops_default {
        keep_default(path, root, version)?;
    }
    document.sort_values(); // the file is ours
    Ok(document.to_string())
}

/// Adds a runtime with these options, unless it has an entry.
fn add(
    path: &Path,
    root: &mut Table,
    version: i64,
    runtime: &Runtime,
    options: Option<&Item>,
) -> Result<()> {
    if let Some(options) = options {
        let runtimes = tables::table(path, root, &runtimes_of(version))?;
        if runtimes.get(&runtime.name).is_none() {
            toml_values::insert(runtimes, &runtime.name, options.clone());
        }
    }
    register(path, root, version, runtime)
}

/// Returns the plugin's section of a document.
fn section(document: &DocumentMut, version: i64) -> Option<Item> {
    let section = tables::get(document.as_item(), &["plugins", plugin_of(version)]);
    section.map(tables::clean)
}

/// Returns the section of the last file that has one: containerd 1.x takes that alone, and later ones merge it into those
/// before, so that repeating it changes nothing.
fn last_section(files: Files<'_>, version: i64, main: &DocumentMut) -> Result<Option<Item>> {
    let mut last = section(main, version);
    for other in files.others {
        let document = tables::parse(&other.path, &other.text)?;
        last = section(&document, version).or(last);
    }
    Ok(last)
}

/// Returns our runtimes in a drop-in: those that the other files lack, or have with another program.
fn registered(path: &Path, text: &str, others: Option<&Item>) -> Result<Vec<Runtime>> {
    let document = tables::parse(path, text)?;
    let version = version_of(&document)?;
    let default = tables::text(document.as_item(), &default_key(version));
    let enables_cdi = tables::get(document.as_item(), cdi_key(version)).and_then(Item::as_bool);
    let others = others.and_then(|section| tables::get(section, &["containerd", "runtimes"]));
    let is_other = |name: &str, entry: &Item| {
        let other = others.and_then(|others| others.get(name));
        other.is_some_and(|other| program(other) == program(entry))
    };
    let runtimes = tables::get(document.as_item(), &runtimes_of(version));
    let runtimes = runtimes.and_then(Item::as_table_like);
    let all = runtimes.into_iter().flat_map(|table| table.iter());
    // `keep_default` adds it.
    let ours = all.filter(|(name, entry)| !is_other(name, entry) && *name != super::BUILT_IN);
    let ours = ours.map(|(name, entry)| Runtime {
        name: name.into(),
        path: program(entry).into(),
        set_as_default: default == Some(name),
        enable_cdi: enables_cdi == Some(true),
    });
    Ok(ours.collect())
}

/// Returns a drop-in that lost its default runtime with that of the other files, whose section it repeats.
pub(crate) fn with_default_of_others(path: &Path, text: &str, others: &[&str]) -> Result<String> {
    let mut document = tables::parse(path, text)?;
    let version = version_of(&document)?;
    let key = default_key(version);
    if version >= FIRST_MERGED || tables::text(document.as_item(), &key).is_some() {
        return Ok(text.into());
    }
    let mut default = None;
    for other in others {
        let section = section(&tables::parse(path, other)?, version);
        if let Some(section) = section {
            default = tables::text(&section, &key[2..]).map(str::to_owned);
        }
    }
    if let Some(default) = default {
        let section = tables::table(path, document.as_table_mut(), &key[..3])?;
        tables::set(section, key[3], default);
        document.sort_values();
    }
    Ok(document.to_string())
}

/// Returns true if a drop-in says nothing that other files do not say as well. `others` are their texts, the main file's
/// first.
pub(crate) fn is_copy(path: &Path, text: &str, others: &[&str]) -> Result<bool> {
    let mut document = tables::parse(path, text)?;
    let version = version_of(&document)?;
    let mut last = None;
    for other in others {
        last = section(&tables::parse(path, other)?, version).or(last);
    }
    // What `configure` adds beside a runtime.
    let built_in = [&runtimes_of(version)[..], &[super::BUILT_IN]].concat();
    let has_built_in =
        (last.as_ref()).is_some_and(|last| tables::get(last, &built_in[2..]).is_some());
    if !has_built_in {
        tables::remove(document.as_table_mut(), &built_in);
    }
    tables::remove(document.as_table_mut(), cdi_key(version));
    let is_known = |key: &str| ["version", "plugins"].contains(&key);
    let plugins = document.get("plugins").and_then(Item::as_table_like);
    let mut plugins = plugins.into_iter().flat_map(|table| table.iter());
    Ok(document.iter().all(|(key, _)| is_known(key))
        && plugins.all(|(name, item)| name == plugin_of(version) && is_within(item, last.as_ref())))
}

/// Returns true if another item has all of an item's values.
fn is_within(item: &Item, other: Option<&Item>) -> bool {
    match item.as_table_like() {
        Some(table) => table.iter().all(|(key, item)| {
            let other = other.and_then(|other| tables::get(other, &[key]));
            is_within(item, other)
        }),
        None => other.is_some_and(|other| toml_values::equal(item, other)),
    }
}

/// Returns the main file with the import, and with a version if it was empty.
pub(super) fn import(
    path: &Path,
    mut document: DocumentMut,
    version: i64,
    drop_in: &Path,
) -> Result<String> {
    let original = document.clone();
    if document.as_table().is_empty() {
        document.insert("version", value(version));
    }
    let pattern = pattern_for(drop_in);
    match document.get_mut("imports").and_then(Item::as_array_mut) {
        Some(imports) if imports.iter().any(|entry| entry.as_str() == Some(&pattern)) => {}
        Some(imports) => imports.push(pattern),
        None => {
            let mut imports = Array::new();
            imports.push(pattern);
            tables::set(document.as_table_mut(), "imports", imports);
        }
    }
    let changed = [vec!["version"], vec!["imports"]];
    tables::checked(path, &original, &document, &changed)
}

/// Removes the import that [`import`] adds from a main file; returns true if it was there.
pub(super) fn unimport(root: &mut Table, drop_in: &Path) -> bool {
    let pattern = pattern_for(drop_in);
    let Some(imports) = root.get_mut("imports").and_then(Item::as_array_mut) else {
        return false;
    };
    let before = imports.len();
    imports.retain(|entry| entry.as_str() != Some(&pattern));
    let is_removed = imports.len() < before;
    if is_removed && imports.is_empty() {
        root.remove("imports");
    }
    is_removed
}

/// Returns the import pattern: the drop-in's whole directory, so that other drop-ins work too.
pub(crate) fn pattern_for(drop_in: &Path) -> String {
    let directory = drop_in.parent().unwrap_or(Path::new("/"));
    if drop_in
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        directory.join("*.toml").display().to_string()
    } else {
        drop_in.display().to_string()
    }
}
