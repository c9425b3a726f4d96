//! Edits containerd's drop-in file, and the main file's import of it.
//!
//! The file is ours. Some of its runtimes are those that `configure` registered, the others are copies of the main file's.
//! Several names share the file, so registering or removing one keeps the others.

use std::path::Path;

use libnvc::Result;
use nvc_hostfile::programs::matches;
use toml_edit::{Array, DocumentMut, Item, Table, Value, value};

use super::section::{
    cdi_key, keep_default, options_of_default, plugin_of, register, runtimes_of, version_of,
};
use crate::engine::{Runtime, tables};

/// Begins the first line of a drop-in whose entries do not show which of them are ours. An array of their names follows.
const HEADER: &str = "# Registered by nvidia-ctk runtime configure: ";

/// Builds the drop-in: the version, the plugin's section of `effective`, and our runtimes in it: the given one, and those
/// that `text`, the file as it is, has besides. `main` is the main file.
pub(super) fn text(
    path: &Path,
    text: Option<&str>,
    main: &DocumentMut,
    effective: &DocumentMut,
    runtime: &Runtime,
    drops_default: bool,
) -> Result<String> {
    let version = version_of(effective)?;
    let plugin = plugin_of(version);
    let mut others = match text {
        Some(text) => registered(path, text, main)?,
        None => Vec::new(),
    };
    others.retain(|other| other.name != runtime.name);
    let mut document = DocumentMut::new();
    document.insert("version", value(version));
    if let Some(section) = tables::get(effective.as_item(), &["plugins", plugin]) {
        let mut plugins = Table::new();
        plugins.set_implicit(true);
        plugins.insert(plugin, tables::clean(section));
        document.insert("plugins", Item::Table(plugins));
    }
    let root = document.as_table_mut();
    let mut names: Vec<String> = others.iter().map(|other| other.name.clone()).collect();
    names.push(runtime.name.clone());
    names.sort();
    // An entry of an earlier call would keep old options: copy the default runtime's again.
    if options_of_default(root, version, &names).is_some() {
        for name in &names {
            tables::remove(root, &[&runtimes_of(version)[..], &[name]].concat());
        }
    }
    for mut other in others {
        other.set_as_default &= !runtime.set_as_default;
        register(path, root, version, &other)?;
    }
    register(path, root, version, runtime)?;
    if drops_default {
        keep_default(path, root, version)?;
    }
    document.sort_values(); // the file is ours
    with_header(path, &names, &document, main)
}

/// Removes a runtime from the drop-in; None if nothing is left in it but a copy of the main file's section.
pub(crate) fn without(
    path: &Path,
    text: &str,
    name: &str,
    main: &DocumentMut,
) -> Result<Option<String>> {
    let mut names = names(path, text, main)?;
    names.retain(|other| other != name);
    let mut document = tables::parse(path, without_header(text))?;
    let version = version_of(&document)?;
    if names.is_empty() && !has_more(&document, version) {
        return Ok(None);
    }
    let root = document.as_table_mut();
    tables::remove(root, &[&runtimes_of(version)[..], &[name]].concat());
    let default = [
        "plugins",
        plugin_of(version),
        "containerd",
        "default_runtime_name",
    ];
    if tables::text_in(root, &default) == Some(name) {
        tables::remove(root, &default);
        if let Some(former) =
            tables::text(main.as_item(), &default).filter(|former| *former != name)
        {
            let section = tables::table(path, root, &default[..3])?;
            tables::set(section, default[3], former);
        }
        keep_default(path, root, version)?;
        document.sort_values();
    }
    with_header(path, &names, &document, main).map(Some)
}

/// Returns the names of our runtimes in a drop-in, sorted: those in its header, or without one, those with a program of the
/// toolkit that the main file lacks.
pub(crate) fn names(path: &Path, text: &str, main: &DocumentMut) -> Result<Vec<String>> {
    let document = tables::parse(path, text)?;
    let entries = entries(&document)?;
    let listed = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix(HEADER));
    let listed: Option<Vec<String>> = listed.and_then(|list| {
        let list: Value = list.parse().ok()?;
        let names = list.as_array()?.iter();
        Some(
            names
                .filter_map(|name| Some(name.as_str()?.into()))
                .collect(),
        )
    });
    let main = tables::get(main.as_item(), &runtimes_of(version_of(main)?));
    let is_ours = |name: &str, entry: &Item| match &listed {
        Some(listed) => listed.iter().any(|listed| listed == name),
        None => is_toolkit(entry) && main.is_none_or(|main| main.get(name).is_none()),
    };
    let ours = entries.filter(|(name, entry)| is_ours(name, entry));
    let mut names: Vec<String> = ours.map(|(name, _)| name.to_owned()).collect();
    names.sort();
    Ok(names)
}

/// Returns our runtimes in a drop-in.
fn registered(path: &Path, text: &str, main: &DocumentMut) -> Result<Vec<Runtime>> {
    let names = names(path, text, main)?;
    let document = tables::parse(path, text)?;
    let version = version_of(&document)?;
    let default = [
        "plugins",
        plugin_of(version),
        "containerd",
        "default_runtime_name",
    ];
    let default = tables::text(document.as_item(), &default);
    let enables_cdi = tables::get(document.as_item(), cdi_key(version)).and_then(Item::as_bool);
    let ours = entries(&document)?.filter(|(name, _)| names.iter().any(|known| known == name));
    let ours = ours.map(|(name, entry)| Runtime {
        name: name.into(),
        path: program(entry).into(),
        set_as_default: default == Some(name),
        enable_cdi: enables_cdi == Some(true),
    });
    Ok(ours.collect())
}

/// Returns the runtimes in a document.
fn entries(document: &DocumentMut) -> Result<impl Iterator<Item = (&str, &Item)>> {
    let runtimes = runtimes_of(version_of(document)?);
    let runtimes = tables::get(document.as_item(), &runtimes).and_then(Item::as_table_like);
    Ok(runtimes.into_iter().flat_map(|table| table.iter()))
}

fn program(entry: &Item) -> &str {
    tables::text(entry, &["options", "BinaryName"]).unwrap_or_default()
}

fn is_toolkit(entry: &Item) -> bool {
    program(entry).contains("nvidia-container-runtime")
}

/// Returns true if a drop-in has settings that we do not write: somebody else wrote the file.
fn has_more(document: &DocumentMut, version: i64) -> bool {
    let plugins = document.get("plugins").and_then(Item::as_table_like);
    let mut plugins = plugins.into_iter().flat_map(|table| table.iter());
    let mut keys = document.iter().map(|(key, _)| key);
    keys.any(|key| !["version", "plugins"].contains(&key))
        || plugins.any(|(name, _)| name != plugin_of(version))
}

/// Returns a drop-in's text, with a header if its entries do not show which of them are ours.
fn with_header(
    path: &Path,
    ours: &[String],
    document: &DocumentMut,
    main: &DocumentMut,
) -> Result<String> {
    let text = document.to_string();
    if names(path, &text, main)? == ours {
        return Ok(text);
    }
    let ours: Array = ours.iter().collect();
    Ok(format!("{HEADER}{ours}\n{text}"))
}

fn without_header(text: &str) -> &str {
    let first = text.split_once('\n');
    let first = first.filter(|(line, _)| line.starts_with(HEADER));
    first.map_or(text, |(_, rest)| rest)
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

/// Returns true if a main file imports the drop-in as [`import`] does.
pub(super) fn is_imported(main: &DocumentMut, drop_in: &Path) -> bool {
    let pattern = pattern_for(drop_in);
    let imports = main.get("imports").and_then(Item::as_array);
    let mut imports = imports.into_iter().flatten();
    imports.any(|entry| entry.as_str() == Some(&pattern))
}

/// Removes the import from a main file; `before` is the former list, if known. What that has is not ours, nor what the
/// administrator has added since.
pub(super) fn unimport(root: &mut Table, drop_in: &Path, before: Option<Item>) {
    let pattern = pattern_for(drop_in);
    let former = before.as_ref().and_then(Item::as_array);
    let is_ours = |entry: &Value| entry.as_str() == Some(&pattern);
    if former.is_some_and(|former| former.iter().any(is_ours)) {
        return;
    }
    let Some(imports) = root.get_mut("imports").and_then(Item::as_array_mut) else {
        return;
    };
    imports.retain(|entry| !is_ours(entry));
    let texts = |list: &Array| -> Vec<_> {
        let texts = list.iter().map(|entry| entry.as_str().map(String::from));
        texts.collect()
    };
    let is_former = former.is_some_and(|former| texts(former) == texts(imports));
    let is_empty = imports.is_empty();
    match before {
        Some(before) if is_former => {
            root.insert("imports", before);
        }
        _ if is_empty => {
            root.remove("imports");
        }
        _ => {}
    }
}

/// Returns true if two drop-ins need the same import.
pub(crate) fn share_import(one: &Path, other: &Path) -> bool {
    pattern_for(one) == pattern_for(other)
}

/// Returns true if the import of a drop-in covers another file of its directory.
pub(crate) fn import_covers(drop_in: &Path, other: &Path) -> bool {
    let pattern = pattern_for(drop_in);
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let names = (name(Path::new(&pattern)), name(other));
    other != drop_in && matches!(names, (Some(pattern), Some(name)) if matches(&pattern, &name))
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
