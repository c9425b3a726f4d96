//! Edits containerd's configuration, versions 1 to 4.
//!
//! From version 2 on the runtime goes to a drop-in file, and the main file only imports it. Older containerd replaces a
//! plugin's section by that of an imported file instead of merging them, so the drop-in repeats the whole section.
//! Version 1 lacks such imports, so the main file is edited, and also if no drop-in is wanted.

use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::change::Change;
use super::{Runtime, tables};
use crate::toml_values;

/// containerd's configuration file.
pub(crate) const CONFIG: &str = "/etc/containerd/config.toml";
/// The drop-in file.
pub(crate) const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";
/// containerd's runtime if its configuration names none.
const BUILT_IN: &str = "runc";
/// The version assumed for a missing file.
const NEW_VERSION: i64 = 2;

/// The files of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    /// The main file.
    pub(crate) path: &'a Path,
    /// Its text; None if it is missing.
    pub(crate) text: Option<&'a str>,
    /// The drop-in; None: edit the main file.
    pub(crate) drop_in: Option<&'a Path>,
    /// The text of that file.
    pub(crate) drop_in_text: Option<&'a str>,
    /// containerd's own dump of its configuration, if available.
    pub(crate) dumped: Option<&'a str>,
    /// True if this containerd drops its built-in runtime when the section names another one, as 1.x does. Without its
    /// default runtime the CRI plugin does not load.
    pub(crate) drops_default: bool,
}

/// Registers the runtime: changes to the drop-in, if there is one, and to the main file.
pub(crate) fn add(files: Files<'_>, runtime: &Runtime) -> Result<Vec<Change>> {
    let main = tables::parse(files.path, files.text.unwrap_or_default())?;
    let effective = match files.dumped {
        Some(text) => tables::parse(Path::new("containerd config dump"), text)?,
        None => main.clone(),
    };
    let version = version_of(&effective)?;
    match files.drop_in {
        Some(drop_in) if version != 1 => Ok(vec![
            Change {
                path: drop_in.into(),
                before: files.drop_in_text.map(Into::into),
                after: Some(section_for(
                    drop_in,
                    &effective,
                    version,
                    runtime,
                    files.drops_default,
                )?),
            },
            import(files, main, version, drop_in)?,
        ]),
        _ => Ok(vec![Change {
            path: files.path.into(),
            before: files.text.map(Into::into),
            after: Some(edited(files.path, main, runtime, files.drops_default)?),
        }]),
    }
}

/// Returns true if a text registers the runtime itself, rather than by an import.
pub(crate) fn has(path: &Path, text: &str, name: &str) -> Result<bool> {
    let document = tables::parse(path, text)?;
    let plugin = plugin_of(version_of(&document)?);
    Ok(tables::get(
        document.as_item(),
        &["plugins", plugin, "containerd", "runtimes", name],
    )
    .is_some())
}

/// Returns the program of a runtime that a text registers itself.
pub(crate) fn program(path: &Path, text: &str, name: &str) -> Result<Option<String>> {
    let document = tables::parse(path, text)?;
    let plugin = plugin_of(version_of(&document)?);
    let entry = ["plugins", plugin, "containerd", "runtimes", name];
    let program = [&entry[..], &["options", "BinaryName"]].concat();
    let entry = tables::get(document.as_item(), &entry);
    let program = tables::text(document.as_item(), &program);
    Ok(entry.map(|_| program.unwrap_or_default().into()))
}

/// Returns true if a main file disables the CRI plugin, which provides runtimes to pods.
pub(crate) fn disables_cri(path: &Path, text: &str) -> bool {
    let names = [plugin_of(1), plugin_of(2), plugin_of(3)];
    let document = tables::parse(path, text).ok();
    let disabled = document.as_ref().and_then(|d| d.get("disabled_plugins"));
    let mut disabled = disabled.and_then(Item::as_array).into_iter().flatten();
    disabled.any(|name| name.as_str().is_some_and(|name| names.contains(&name)))
}

/// Settings of a main file that a drop-in replaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hidden {
    /// Their keys, in the CRI plugin's section.
    pub(crate) keys: Vec<String>,
    /// Options of `configure` that write the drop-in again.
    pub(crate) options: String,
}

/// Returns the settings of the main file that our drop-in replaces by other ones: it repeats the whole section, as that
/// was then. `replaces` is true if this containerd takes nothing of the main file's section, as 1.x does.
pub(crate) fn hidden(
    path: &Path,
    text: &str,
    drop_in: &Path,
    drop_in_text: &str,
    replaces: bool,
) -> Result<Hidden> {
    let main = tables::parse(path, text)?;
    let own = tables::parse(drop_in, drop_in_text)?;
    let plugin = plugin_of(version_of(&main)?);
    let section = ["plugins", plugin];
    let parts = (
        tables::get(main.as_item(), &section),
        tables::get(own.as_item(), &section),
    );
    let (Some(main), Some(own)) = parts else {
        return Ok(Hidden::default());
    };
    let mut hidden = Hidden::default();
    // The entries that we add are no copies.
    let mut added: Vec<Vec<&str>> = vec![vec!["enable_cdi"]];
    let runtimes = tables::get(own, &["containerd", "runtimes"]).and_then(Item::as_table_like);
    for (name, entry) in runtimes.into_iter().flat_map(|table| table.iter()) {
        let program = tables::text(entry, &["options", "BinaryName"]).unwrap_or_default();
        if !program.contains("nvidia-container-runtime") {
            continue;
        }
        added.push(vec!["containerd", "runtimes", name]);
        if name != "nvidia" {
            hidden.options += &format!(" --nvidia-runtime-name={name}");
        }
        if !program.ends_with("bin/nvidia-container-runtime") {
            hidden.options += &format!(" --nvidia-runtime-path={program}");
        }
        if tables::text(own, &["containerd", "default_runtime_name"]) == Some(name) {
            added.push(vec!["containerd", "default_runtime_name"]);
            hidden.options += " --nvidia-set-as-default";
        }
    }
    if added.len() == 1 {
        return Ok(Hidden::default()); // not our drop-in
    }
    if tables::get(own, &["enable_cdi"]).and_then(Item::as_bool) == Some(true) {
        hidden.options += " --cdi.enabled";
    }
    differing(
        main,
        own,
        replaces,
        &mut Vec::new(),
        &added,
        &mut hidden.keys,
    );
    Ok(hidden)
}

/// Collects the keys of one item that another has with another value, or, if it `replaces` the first, not at all.
fn differing<'a>(
    main: &'a Item,
    own: &Item,
    replaces: bool,
    place: &mut Vec<&'a str>,
    added: &[Vec<&str>],
    keys: &mut Vec<String>,
) {
    for (key, item) in main
        .as_table_like()
        .into_iter()
        .flat_map(|table| table.iter())
    {
        place.push(key);
        let other = own.as_table_like().and_then(|own| own.get(key));
        if added.iter().all(|added| added != place) {
            match other {
                Some(other) if item.is_table_like() && other.is_table_like() => {
                    differing(item, other, replaces, place, added, keys);
                }
                Some(other) if toml_values::equal(item, other) => {}
                None if !replaces => {}
                _ => keys.push(place.join(".")),
            }
        }
        place.pop();
    }
}

/// Removes the runtime and the import from a main file; the keys that [`add`] sets get their values from `before`.
pub(crate) fn restore(
    path: &Path,
    text: &str,
    before: Option<&str>,
    name: &str,
    drop_in: Option<&Path>,
) -> Result<Option<String>> {
    let original = tables::parse(path, text)?;
    let mut document = original.clone();
    let old = before.map(|text| tables::parse(path, text)).transpose()?;
    let old_item = |keys: &[&str]| {
        old.as_ref()
            .and_then(|old| tables::get(old.as_item(), keys).cloned())
    };
    let version = version_of(&document)?;
    let plugin = plugin_of(version);
    let root = document.as_table_mut();
    let runtime = ["plugins", plugin, "containerd", "runtimes", name];
    if tables::get_in(root, &runtime).is_some() {
        put_back(path, root, &runtime, old_item(&runtime))?;
        let default = ["plugins", plugin, "containerd", "default_runtime_name"];
        if tables::text_in(root, &default) == Some(name) {
            put_back(path, root, &default, old_item(&default))?;
        }
        if old.is_some() {
            for key in [cdi_key(version), &["plugins", plugin, "enable_cdi"][..]] {
                put_back(path, root, key, old_item(key))?;
            }
        }
    }
    if let Some(drop_in) = drop_in {
        unimport(root, &pattern_for(drop_in), old_item(&["imports"]));
    }
    // A version alone is equivalent to no file.
    let only_version =
        root.iter().all(|(key, _)| key == "version") && old_item(&["version"]).is_none();
    let changed = changed_keys(version, name);
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
        [&section[..], &["runtimes", name]].concat(),
        cdi_key(version).to_vec(),
        vec!["plugins", plugin, "enable_cdi"],
    ]
}

/// Returns the version of a configuration: 2 if it is empty, 1 if it has no version.
fn version_of(document: &DocumentMut) -> Result<i64> {
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
fn plugin_of(version: i64) -> &'static str {
    match version {
        1 => "cri",
        2 => "io.containerd.grpc.v1.cri",
        _ => "io.containerd.cri.v1.runtime",
    }
}

/// Returns the key that enables CDI.
fn cdi_key(version: i64) -> &'static [&'static str] {
    match version {
        1 => &["plugins", "cri", "containerd", "enable_cdi"],
        2 => &["plugins", "io.containerd.grpc.v1.cri", "enable_cdi"],
        _ => &["plugins", "io.containerd.cri.v1.runtime", "enable_cdi"],
    }
}

/// Builds the drop-in: the version, the plugin's section, and the runtime in it.
fn section_for(
    path: &Path,
    effective: &DocumentMut,
    version: i64,
    runtime: &Runtime,
    drops_default: bool,
) -> Result<String> {
    let plugin = plugin_of(version);
    let mut document = DocumentMut::new();
    document.insert("version", value(version));
    if let Some(section) = tables::get(effective.as_item(), &["plugins", plugin]) {
        let mut plugins = Table::new();
        plugins.set_implicit(true);
        plugins.insert(plugin, tables::clean(section));
        document.insert("plugins", Item::Table(plugins));
    }
    // An entry of an earlier call would keep old options: copy the default runtime's again.
    let root = document.as_table_mut();
    let section = ["plugins", plugin, "containerd"];
    if options_of_default(root, &section, &runtime.name).is_some() {
        let entry = ["plugins", plugin, "containerd", "runtimes", &runtime.name];
        tables::remove(root, &entry);
    }
    register(path, root, version, runtime)?;
    if drops_default {
        keep_default(path, root, version)?;
    }
    document.sort_values(); // the file is ours
    Ok(document.to_string())
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
        let section = ["plugins", plugin_of(version), "containerd"];
        changed.push([&section[..], &["runtimes", BUILT_IN]].concat());
    }
    tables::checked(path, &original, &document, &changed)
}

/// Adds the built-in default runtime to a configuration that does not name it.
fn keep_default(path: &Path, root: &mut Table, version: i64) -> Result<()> {
    let containerd = tables::table(path, root, &["plugins", plugin_of(version), "containerd"])?;
    let default = containerd
        .get("default_runtime_name")
        .and_then(Item::as_str);
    if default.is_some_and(|name| name != BUILT_IN) {
        return Ok(()); // the user's own, or ours
    }
    let runtimes = tables::table(path, containerd, &["runtimes"])?;
    if runtimes.get(BUILT_IN).is_none() {
        let entry = tables::table(path, runtimes, &[BUILT_IN])?;
        tables::set(entry, "runtime_type", "io.containerd.runc.v2");
    }
    Ok(())
}

/// Adds the runtime's table, with the options of the runtime that containers use otherwise.
fn register(path: &Path, root: &mut Table, version: i64, runtime: &Runtime) -> Result<()> {
    let plugin = plugin_of(version);
    let section = ["plugins", plugin, "containerd"];
    let options = options_of_default(root, &section, &runtime.name);
    let containerd = tables::table(path, root, &section)?;
    if runtime.set_as_default {
        tables::set(containerd, "default_runtime_name", runtime.name.as_str());
    } else if containerd
        .get("default_runtime_name")
        .and_then(Item::as_str)
        == Some(&runtime.name)
    {
        containerd.remove("default_runtime_name");
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
    if runtime.enable_cdi {
        let (key, above) = cdi_key(version).split_last().unwrap_or((&"", &[]));
        tables::set(tables::table(path, root, above)?, key, true);
    }
    Ok(())
}

/// Returns the table of the default runtime, or of runc or crun, whichever exists first.
fn options_of_default(root: &Table, section: &[&str], own: &str) -> Option<Item> {
    let containerd = tables::get_in(root, section);
    let default = containerd.and_then(|table| tables::text(table, &["default_runtime_name"]));
    default
        .filter(|name| !name.starts_with("nvidia") && *name != own)
        .into_iter()
        .chain(["runc", "crun"])
        .find_map(|name| {
            tables::get(containerd?, &["runtimes", name]).filter(|item| item.is_table_like())
        })
        .map(tables::clean)
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

/// Returns the main file with the import, and with a version if it was empty.
fn import(
    files: Files<'_>,
    mut document: DocumentMut,
    version: i64,
    drop_in: &Path,
) -> Result<Change> {
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
    let after = tables::checked(files.path, &original, &document, &changed)?;
    Ok(Change {
        path: files.path.into(),
        before: files.text.map(Into::into),
        after: Some(after),
    })
}

/// Returns the import pattern: the drop-in's whole directory, so that other drop-ins work too.
fn pattern_for(drop_in: &Path) -> String {
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

fn unimport(root: &mut Table, pattern: &str, before: Option<Item>) {
    if let Some(before) = before {
        root.insert("imports", before);
        return;
    }
    let Some(imports) = root.get_mut("imports").and_then(Item::as_array_mut) else {
        return;
    };
    imports.retain(|entry| entry.as_str() != Some(pattern));
    if imports.is_empty() {
        root.remove("imports");
    }
}

fn put_back(path: &Path, root: &mut Table, keys: &[&str], before: Option<Item>) -> Result<()> {
    let Some((key, above)) = keys.split_last() else {
        return Ok(());
    };
    match before {
        Some(item) => {
            toml_values::insert(tables::table(path, root, above)?, key, item);
        }
        None => tables::remove(root, keys),
    }
    Ok(())
}
