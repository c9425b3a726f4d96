//! Edits CRI-O's configuration: a separate drop-in, or the main file if no drop-in is wanted.

use std::collections::BTreeMap;
use std::path::Path;

use libnvc::Result;
use toml_edit::{Item, Table};

use super::change::Change;
use super::undo::Removal;
use super::{Files, Runtime, tables};
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
    let effective = match files.dumped {
        Some(text) => tables::parse(Path::new("crio status config"), text)?,
        None => main.clone(),
    };
    let options = options_of_default(effective.as_item(), &runtime.name);
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

/// Returns the program of a runtime that a text registers.
pub(crate) fn program(path: &Path, text: &str, name: &str) -> Result<Option<String>> {
    Ok(registered(path, text)?.remove(name))
}

/// Returns the runtimes that a text registers, with their programs.
pub(crate) fn registered(path: &Path, text: &str) -> Result<BTreeMap<String, String>> {
    let document = tables::parse(path, text)?;
    Ok(tables::programs(&document, &RUNTIMES, &["runtime_path"]))
}

/// Removes the runtime from a text; the keys that [`add`] sets get their values from the former text.
pub(crate) fn restore(path: &Path, text: &str, removal: Removal<'_>) -> Result<Option<String>> {
    let name = removal.name;
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let old = removal.before.map(|text| tables::parse(path, text));
    let old = old.transpose()?;
    let old_item = |keys: &[&str]| {
        old.as_ref()
            .and_then(|old| tables::get(old.as_item(), keys).cloned())
    };
    let root = document.as_table_mut();
    let mut keys = vec![[&RUNTIMES[..], &[name]].concat()];
    if tables::text_in(root, &DEFAULT) == Some(name) {
        keys.push(DEFAULT.to_vec());
    }
    for keys in keys {
        tables::put_back(path, root, &keys, old_item(&keys))?;
    }
    let changed = changed_keys(name);
    // Tables without settings are equivalent to no file.
    (!is_empty(document.as_item()))
        .then(|| tables::checked(path, &original, &document, &changed))
        .transpose()
}

fn is_empty(item: &Item) -> bool {
    let table = item.as_table_like();
    table.is_some_and(|table| table.iter().all(|(_, item)| is_empty(item)))
}

/// Returns the keys that [`add`] may set.
fn changed_keys(name: &str) -> [Vec<&str>; 2] {
    [DEFAULT.to_vec(), [&RUNTIMES[..], &[name]].concat()]
}

fn options_of_default(root: &Item, own: &str) -> Item {
    let (runtimes, default) = (tables::get(root, &RUNTIMES), tables::text(root, &DEFAULT));
    let options = tables::options_of_default(runtimes, default, &[own]);
    options.unwrap_or_else(|| Item::Table(Table::new()))
}
