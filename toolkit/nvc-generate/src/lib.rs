//! Describes this machine for containers: as the plan for one of them, or as CDI specifications for all.
//!
//! libnvc finds the driver's files and devices, selects and plans; the modes add what they find themselves, as intents
//! too. A container gets those ([`for_container`], [`plan()`]): nodes and variables in config.json, everything else by a
//! hook. [`generate`] renders them as [`Edits`](nvc_cdi::Edits) of documents: it names the devices, removes duplicates
//! and adds the device `all`.
//! Nodes are identified by path and never by number, because major numbers can change at each boot; groups are added
//! only on request, because they need a newer format version than many engines support.
#![forbid(unsafe_code)]

pub mod csv;
pub mod driver_files;
pub mod gated;
pub mod hook_program;
pub mod nodes;

mod automatic;
mod channels;
mod container;
mod content;
mod devices;
mod displays;
mod document;
mod driver;
mod exposed;
mod hooks;
mod ids;
mod live;
mod modes;
mod options;
mod query_program;
mod render;
mod simplify;

pub use automatic::Automatic;
pub use channels::Channels;
pub use container::{ContainerPlan, for_container, for_container_unless_jetson};
pub use content::VOID;
pub use devices::PARTS;
pub use displays::{addresses_of_module, displays, graphics};
pub use document::{GeneratedSpecs, generate};
pub use driver::policy;
pub use hooks::{HookProgram, Hooks};
pub use ids::ids;
pub use modes::nvml::{DriverPlan, NO_GPU, plan};
pub use options::{Csv, Files, Find, Mode, Names, Naming, Options, Rendering};
pub use query_program::query_program;
pub use render::{apply_hook, nodes_and_variables};

#[cfg(test)]
mod tests;

/// Returns a directory that is not in one of all users.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
fn scratch() -> tempfile::TempDir {
    let beside = std::env::current_exe().unwrap();
    let made = tempfile::tempdir_in("/var/lib");
    made.or_else(|_| tempfile::tempdir_in(beside.parent().unwrap()))
        .unwrap()
}
