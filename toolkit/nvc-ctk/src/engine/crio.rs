//! Edits CRI-O's configuration: a separate drop-in, or the main file if no drop-in is wanted.

use std::collections::BTreeMap;
use std::path::Path;

use libnvc::Result;
use toml_edit::{DocumentMut, Item, Table};

use super::change::Change;
use super::{Files, IsRemoved, Removed, Runtime, tables};
use crate::toml_values;

/// CRI-O's configuration file.
pub(crate) const CONFIG: &str = "/etc/crio/crio.conf";
/// The drop-in file, which is read after it.
pub(crate) const DROP_IN: &str = "/etc/crio/crio.conf.d/99-nvidia.toml";

const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];
const DEFAULT: [&str; 3] = ["crio", "runtime", "default_runtime"];

/// Registers the runtime in the drop-in, or in the main file if there is none.
pub(crate) fn add(files: Files<'_>, runtime: &Runtime) -> Result<Change> {
    let main = tables::parse(files.path, files.text.unwrap_or_default())?;
    let mut sources = match files.dumped {
        Some(text) => vec![tables::parse(Path::new("crio status config"), text)?],
        None => vec![main.clone()],
    };
    if files.dumped.is_none() {
        for other in files.others {
            sources.push(tables::parse(&other.path, &other.text)?);
        }
    }
    let options = options_of_default(&sources, &runtime.name);
    let (path, before, mut document) = match files.drop_in {
        Some(drop_in) => {
            let text = files.drop_in_text.unwrap_or_default();
            (drop_in, files.drop_in_text, tables::parse(drop_in, text)?)
        }
        None => (files.path, files.text, main),
    };
    let original = document.clone();
    let root = document.as_table_mut();
    if files.drop_in.is_some() {
        // An entry of an earlier call would keep old options. Other runtimes' entries stay.
        tables::remove(root, &[&RUNTIMES[..], &[&runtime.name]].concat());
        if tables::text_in(root, &DEFAULT) == Some(&runtime.name) {
            tables::remove(root, &DEFAULT);
        }
    }
    if runtime.set_as_default {
        let section = tables::table(path, root, &RUNTIMES[..2])?;
        tables::set(section, "default_runtime", runtime.name.as_str());
    }
    let runtimes = tables::table(path, root, &RUNTIMES)?;
    if runtimes.get(&runtime.name).is_none() {
        toml_values::insert(runtimes, &runtime.name, options);
    }
    let entry = tables::table(path, runtimes, &[&runtime.name])?;
    tables::set(entry, "runtime_path", runtime.path.as_str());
    tables::set(entry, "runtime_type", "oci");
    let changed = changed_keys(&runtime.name);
    let after = tables::checked(path, &original, &document, &changed)?;
    Ok(Change {
        path: path.into(),
        before: before.map(Into::into),
        after: Some(after),
    })
}

/// Returns the runtime that a text makes the default.
pub(crate) fn default_runtime(path: &Path, text: &str) -> Result<Option<String>> {
    let document = tables::parse(path, text)?;
    Ok(tables::text(document.as_item(), &DEFAULT).map(Into::into))
}

/// Returns the runtimes that a text registers, with their programs.
pub(crate) fn registered(path: &Path, text: &str) -> Result<BTreeMap<String, String>> {
    let document = tables::parse(path, text)?;
    Ok(tables::programs(&document, &RUNTIMES, &["runtime_path"]))
}

/// Removes runtimes from a text, and a default runtime that is one of them.
pub(crate) fn remove(path: &Path, text: &str, is_removed: &IsRemoved<'_>) -> Result<Removed> {
    let names = registered(path, text)?.into_iter();
    let names = names.filter(|(name, program)| is_removed(name, program));
    let names: Vec<String> = names.map(|(name, _)| name).collect();
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let root = document.as_table_mut();
    let mut changed = Vec::new();
    for name in &names {
        let keys = [&RUNTIMES[..], &[name]].concat();
        tables::remove(root, &keys);
        changed.push(keys);
    }
    let default = tables::text_in(root, &DEFAULT);
    let had_default = default.is_some_and(|default| names.iter().any(|name| name == default));
    if had_default {
        tables::remove(root, &DEFAULT);
        changed.push(DEFAULT.to_vec());
    }
    // Tables without settings are equivalent to no file.
    let is_bare = !names.is_empty() && is_empty(document.as_item());
    let text = (!is_bare)
        .then(|| tables::checked(path, &original, &document, &changed))
        .transpose()?;
    Ok(Removed {
        text,
        names,
        had_default,
    })
}

fn is_empty(item: &Item) -> bool {
    let table = item.as_table_like();
    table.is_some_and(|table| table.iter().all(|(_, item)| is_empty(item)))
}

/// Returns the keys that [`add`] may set.
fn changed_keys(name: &str) -> [Vec<&str>; 2] {
    [DEFAULT.to_vec(), [&RUNTIMES[..], &[name]].concat()]
}

/// Returns the options of the runtime that containers use otherwise, as CRI-O merges them: later files win, key by key.
fn options_of_default(sources: &[DocumentMut], own: &str) -> Item {
    let mut runtimes = Table::new();
    let mut default = None;
    for source in sources {
        let source = source.as_item();
        default = tables::text(source, &DEFAULT).or(default);
        let entries = tables::get(source, &RUNTIMES).and_then(Item::as_table_like);
        for (name, entry) in entries.into_iter().flat_map(|table| table.iter()) {
            let merged = runtimes.entry(name).or_insert(Item::Table(Table::new()));
            let keys = entry
                .as_table_like()
                .into_iter()
                .flat_map(|table| table.iter());
            for (key, value) in keys {
                if let Some(merged) = merged.as_table_like_mut() {
                    merged.insert(key, value.clone());
                }
            }
        }
    }
    let options = tables::options_of_default(Some(&Item::Table(runtimes)), default, &[own]);
    options.unwrap_or_else(|| Item::Table(Table::new()))
}
