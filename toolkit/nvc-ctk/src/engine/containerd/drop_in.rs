//! Edits containerd's drop-in file, and the main file's import of it.
//!
//! The file is ours. Several names share it, so registering one keeps the others.

use std::path::Path;

use libnvc::Result;
use toml_edit::{Array, DocumentMut, Item, value};

use super::section::{
    BUILT_IN, cdi_key, keep_default, layout, options_of_default, plugin_of, register, version_of,
};
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
    let others = files.others.iter();
    let others = others.map(|other| tables::parse(&other.path, &other.text));
    let section = match dumped {
        Some(dumped) => section(dumped, version),
        None => last_section(std::iter::once(Ok(main.clone())).chain(others), version)?,
    };
    let mut runtimes = match files.drop_in_text {
        Some(text) => registered(&tables::parse(path, text)?, section.as_ref())?,
        None => Vec::new(),
    };
    runtimes.retain(|other| other.name != runtime.name);
    if runtime.set_as_default {
        runtimes
            .iter_mut()
            .for_each(|other| other.set_as_default = false);
    }
    runtimes.push(runtime.clone());
    let names: Vec<&str> = runtimes.iter().map(|one| one.name.as_str()).collect();
    let containerd = section.as_ref();
    let containerd = containerd.and_then(|section| tables::get(section, &["containerd"]));
    let options = options_of_default(containerd, &names);
    let mut document = DocumentMut::new();
    document.insert("version", value(version));
    if let Some(section) = section.filter(|_| version < FIRST_MERGED) {
        let plugins = tables::table(path, document.as_table_mut(), &["plugins"])?;
        plugins.insert(plugin_of(version), section);
    }
    // An entry of an earlier call would keep old options: the default runtime's are copied again.
    if let Some(options) = options {
        let root = document.as_table_mut();
        let table = tables::table(path, root, &layout(version).runtimes)?;
        for runtime in &runtimes {
            toml_values::insert(table, &runtime.name, options.clone());
        }
    }
    for runtime in &runtimes {
        register(path, &mut document, version, runtime)?;
    }
    if files.drops_default {
        keep_default(path, &mut document, version)?;
    }
    document.sort_values(); // the file is ours
    Ok(document.to_string())
}

/// Returns the plugin's section of a document.
fn section(document: &DocumentMut, version: i64) -> Option<Item> {
    let section = tables::get(document.as_item(), &["plugins", plugin_of(version)]);
    section.map(tables::clean)
}

/// Returns the section of the last file that has one: containerd 1.x takes that alone, and later ones merge it into those
/// before, so that repeating it changes nothing.
fn last_section(
    files: impl Iterator<Item = Result<DocumentMut>>,
    version: i64,
) -> Result<Option<Item>> {
    let mut last = None;
    for document in files {
        last = section(&document?, version).or(last);
    }
    Ok(last)
}

/// Returns our runtimes in a drop-in: those that the section of the other files lacks, or has with another program.
fn registered(document: &DocumentMut, others: Option<&Item>) -> Result<Vec<Runtime>> {
    let version = version_of(document)?;
    let layout = layout(version);
    let default = layout.default_runtime(document);
    let enables_cdi = tables::get(document.as_item(), &cdi_key(version)).and_then(Item::as_bool);
    let is_other = |name: &str, program: &str| {
        let other =
            others.and_then(|section| tables::get(section, &["containerd", "runtimes", name]));
        other.is_some_and(|other| layout.program(other) == program)
    };
    let mut ours = layout.registered(document);
    // `keep_default` adds the built-in one.
    ours.retain(|name, program| !is_other(name, program) && name != BUILT_IN);
    let ours = ours.into_iter().map(|(name, path)| Runtime {
        set_as_default: default == Some(&name),
        enable_cdi: enables_cdi == Some(true),
        name,
        path,
    });
    Ok(ours.collect())
}

/// Returns true if a drop-in says nothing that other files do not say as well. `others` are their texts, the main file's
/// first.
pub(crate) fn is_copy(path: &Path, text: &str, others: &[&str]) -> Result<bool> {
    let document = tables::parse(path, text)?;
    let version = version_of(&document)?;
    let others = others.iter().map(|text| tables::parse(path, text));
    let known = last_section(others, version)?.map(|section| toml_values::values(&section));
    let known = known.unwrap_or_default();
    // What `configure` adds beside a runtime.
    let mut added = vec![vec!["version"], cdi_key(version)];
    let runtimes = ["containerd", "runtimes", BUILT_IN];
    if !known
        .keys()
        .any(|path| toml_values::is_below(path, &runtimes))
    {
        added.push(layout(version).entry(BUILT_IN));
    }
    let section = ["plugins", plugin_of(version)];
    let rest = toml_values::others(toml_values::values(document.as_item()), &added);
    let is_known = |(path, value): (&Vec<String>, &String)| {
        toml_values::is_below(path, &section) && known.get(&path[section.len()..]) == Some(value)
    };
    Ok(rest.iter().all(is_known))
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
        None => tables::set(
            document.as_table_mut(),
            "imports",
            Array::from_iter([pattern]),
        ),
    }
    let changed = [vec!["version"], vec!["imports"]];
    tables::checked(path, &original, &document, &changed)
}

/// Removes the import of a drop-in from a main file, if the list has it as [`import`] writes it.
pub(crate) fn without_import(path: &Path, text: &str, drop_in: &Path) -> Result<String> {
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let pattern = pattern_for(drop_in);
    if let Some(imports) = document.get_mut("imports").and_then(Item::as_array_mut) {
        let before = imports.len();
        imports.retain(|entry| entry.as_str() != Some(&pattern));
        if imports.is_empty() && before > 0 {
            document.remove("imports");
        }
    }
    tables::checked(path, &original, &document, &[vec!["imports"]])
}

/// Returns the import pattern: the drop-in's whole directory, so that other drop-ins work too.
pub(crate) fn pattern_for(drop_in: &Path) -> String {
    match drop_in.extension() {
        Some(extension) if extension == "toml" => drop_in.with_file_name("*.toml"),
        _ => drop_in.to_owned(),
    }
    .display()
    .to_string()
}
