//! Finds settings of the main file that the drop-in hides, because it repeats the plugin's section as it was at that
//! time.

use libnvc::Result;
use toml_edit::Item;

use super::look::registered;
use super::section::{plugin_of, version_of};
use crate::engine::Text;
use crate::engine::program::is_toolkit;
use crate::engine::tables;
use crate::toml_values;

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
pub(crate) fn hidden(main: &Text, drop_in: &Text, replaces: bool) -> Result<Hidden> {
    let document = tables::parse(&main.path, &main.text)?;
    let own = tables::parse(&drop_in.path, &drop_in.text)?;
    let plugin = plugin_of(version_of(&document)?);
    let section = ["plugins", plugin];
    let parts = (
        tables::get(document.as_item(), &section),
        tables::get(own.as_item(), &section),
    );
    let (Some(main), Some(own)) = parts else {
        return Ok(Hidden::default());
    };
    let mut hidden = Hidden::default();
    // The entries that we add are no copies.
    let mut added: Vec<Vec<&str>> = vec![vec!["enable_cdi"]];
    let names = registered(&drop_in.path, &drop_in.text)?.into_iter();
    let names = names.filter(|(_, program)| is_toolkit(program));
    let names: Vec<String> = names.map(|(name, _)| name).collect();
    let default = tables::text(own, &["containerd", "default_runtime_name"]);
    for name in &names {
        added.push(vec!["containerd", "runtimes", name]);
        if default == Some(name) {
            added.push(vec!["containerd", "default_runtime_name"]);
        }
    }
    // Registering one of them refreshes all: the default one, so that it stays so.
    let is_default = |name: &&String| default == Some(name);
    let Some(name) = names.iter().find(is_default).or(names.first()) else {
        return Ok(Hidden::default()); // not our drop-in
    };
    let entry = ["containerd", "runtimes", name, "options", "BinaryName"];
    let program = tables::text(own, &entry).unwrap_or_default();
    if name != "nvidia" {
        hidden.options += &format!(" --nvidia-runtime-name={name}");
    }
    if !program.ends_with("bin/nvidia-container-runtime") {
        hidden.options += &format!(" --nvidia-runtime-path={program}");
    }
    if is_default(&name) {
        hidden.options += " --nvidia-set-as-default";
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
