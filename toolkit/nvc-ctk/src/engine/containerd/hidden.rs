//! Finds settings of the main file that the drop-in hides, because it repeats the plugin's section as it was at that
//! time.

use libnvc::Result;
use toml_edit::Item;

use super::section::{cdi_key, layout, plugin_of, version_of};
use crate::engine::program::is_toolkit;
use crate::engine::{Text, tables};
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
    let main = tables::parse(&main.path, &main.text)?;
    let own = tables::parse(&drop_in.path, &drop_in.text)?;
    let version = version_of(&main)?;
    let (layout, section) = (layout(version), ["plugins", plugin_of(version)]);
    let mut runtimes = layout.registered(&own);
    runtimes.retain(|_, program| is_toolkit(program));
    // Registering one of them refreshes all: the default one, so that it stays so.
    let default = layout.default_runtime(&own);
    let default = default.and_then(|default| runtimes.get_key_value(default));
    let Some((name, program)) = default.or(runtimes.first_key_value()) else {
        return Ok(Hidden::default()); // not our drop-in
    };
    let mut options = String::new();
    if name != "nvidia" {
        options += &format!(" --nvidia-runtime-name={name}");
    }
    if !program.ends_with("bin/nvidia-container-runtime") {
        options += &format!(" --nvidia-runtime-path={program}");
    }
    // The entries that we add are no copies.
    let mut added: Vec<_> = runtimes.keys().map(|name| layout.entry(name)).collect();
    if default.is_some() {
        options += " --nvidia-set-as-default";
        added.push(layout.default.clone());
    }
    added.push(cdi_key(version));
    if tables::get(own.as_item(), &cdi_key(version)).and_then(Item::as_bool) == Some(true) {
        options += " --cdi.enabled";
    }
    let own = toml_values::values(own.as_item());
    let has_section = own.keys().any(|path| toml_values::is_below(path, &section));
    let mut hidden = toml_values::others(toml_values::values(main.as_item()), &added);
    hidden.retain(|path, value| {
        let is_other = own.get(path).map_or(replaces, |other| other != value);
        has_section && toml_values::is_below(path, &section) && is_other
    });
    let keys = hidden.keys().map(|path| path[section.len()..].join("."));
    let keys = keys.collect();
    Ok(Hidden { keys, options })
}
