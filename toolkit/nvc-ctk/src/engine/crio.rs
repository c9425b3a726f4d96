//! Edits CRI-O's configuration: a separate drop-in, or the main file if no drop-in is wanted.

use std::path::Path;

use libnvc::Result;
use toml_edit::{DocumentMut, Item, Table};

use super::tables::{self, Layout};
use super::{Files, Runtime, Text};
use crate::toml_values;

/// CRI-O's configuration file.
pub(crate) const CONFIG: &str = "/etc/crio/crio.conf";
/// The drop-in file, which is read after it.
pub(crate) const DROP_IN: &str = "/etc/crio/crio.conf.d/99-nvidia.toml";

/// Returns where files have their runtimes.
pub(super) fn layout() -> Layout {
    Layout {
        runtimes: vec!["crio", "runtime", "runtimes"],
        default: vec!["crio", "runtime", "default_runtime"],
        program: &["runtime_path"],
    }
}

/// Registers the runtime: returns the text of the drop-in, or of the main file if there is none.
pub(crate) fn add(files: Files<'_>, runtime: &Runtime) -> Result<Text> {
    let layout = layout();
    let main = tables::parse(files.path, files.text.unwrap_or_default())?;
    let sources = match files.dumped {
        Some(text) => vec![tables::parse(Path::new("crio status config"), text)?],
        None => {
            let others = files.others.iter();
            let others = others.map(|other| tables::parse(&other.path, &other.text));
            std::iter::once(Ok(main.clone()))
                .chain(others)
                .collect::<Result<_>>()?
        }
    };
    let options = options_of_default(&sources, &runtime.name)?;
    let (path, mut document) = match files.drop_in {
        Some(drop_in) => {
            let text = files.drop_in_text.unwrap_or_default();
            (drop_in, tables::parse(drop_in, text)?)
        }
        None => (files.path, main),
    };
    let original = document.clone();
    let entry = layout.entry(&runtime.name);
    if files.drop_in.is_some() {
        // An entry of an earlier call would keep old options. Other runtimes' entries stay.
        tables::remove(document.as_table_mut(), &entry);
        if layout.default_runtime(&document) == Some(&runtime.name) {
            tables::remove(document.as_table_mut(), &layout.default);
        }
    }
    let root = document.as_table_mut();
    if runtime.set_as_default {
        let section = tables::table(path, root, &layout.default[..2])?;
        tables::set(section, layout.default[2], runtime.name.as_str());
    }
    let runtimes = tables::table(path, root, &layout.runtimes)?;
    if runtimes.get(&runtime.name).is_none() {
        toml_values::insert(runtimes, &runtime.name, options);
    }
    let table = tables::table(path, runtimes, &[&runtime.name])?;
    tables::set(table, "runtime_path", runtime.path.as_str());
    tables::set(table, "runtime_type", "oci");
    let changed = [layout.default.clone(), entry];
    let after = tables::checked(path, &original, &document, &changed)?;
    Ok(Text::new(path, after))
}

/// Returns the options of the runtime that containers use otherwise, as CRI-O merges them: later files win, key by key.
fn options_of_default(sources: &[DocumentMut], own: &str) -> Result<Item> {
    let layout = layout();
    let mut runtimes = Table::new();
    let mut default = None;
    for source in sources {
        default = layout.default_runtime(source).or(default);
        let entries = tables::get(source.as_item(), &layout.runtimes);
        let entries = entries.and_then(Item::as_table_like);
        for (name, entry) in entries.into_iter().flat_map(|table| table.iter()) {
            let merged = tables::table(Path::new(name), &mut runtimes, &[name])?;
            for (key, value) in entry
                .as_table_like()
                .into_iter()
                .flat_map(|table| table.iter())
            {
                merged.insert(key, value.clone());
            }
        }
    }
    let options = tables::options_of_default(Some(&Item::Table(runtimes)), default, &[own]);
    Ok(options.unwrap_or_else(|| Item::Table(Table::new())))
}
