//! Describes this machine for containers: as edits for one of them, or as CDI specifications for all.
//!
//! libnvc finds the driver's files and devices, selects and plans; `render` turns a plan into a [`Draft`], whose hooks
//! are names and arguments until it becomes [`Edits`](nvc_cdi::Edits) with the hook program. A container gets those
//! ([`for_container`], [`plan()`]); [`generate`] makes documents of them: it names the devices, removes duplicates and
//! adds the device `all`.
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
mod draft;
mod driver;
mod exposed;
mod hooks;
mod ids;
mod modes;
mod options;
mod render;
mod simplify;
mod uuid;

pub use automatic::Automatic;
pub use channels::Channels;
pub use container::{ContainerEdits, for_container, for_container_unless_jetson};
pub use content::VOID;
pub use displays::{addresses_of_module, displays, graphics};
pub use document::{GeneratedSpecs, PARTS, generate};
pub use draft::{Draft, merge};
pub use driver::policy;
pub use hooks::{HookProgram, Hooks};
pub use ids::ids;
pub use modes::nvml::{DriverPlan, NO_GPU, plan};
pub use options::{Files, Flags, Mode, Naming, Options};
pub use render::edits;

#[cfg(test)]
mod tests;
