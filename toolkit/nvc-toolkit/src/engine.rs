//! Registers the NVIDIA runtime with container engines, and removes it again.
//!
//! Users' files are edited, not rewritten: comments, order and unknown keys are kept, files that cannot be parsed stay
//! unchanged, and undo restores the original bytes. Each engine's module is pure: texts in, [`Change`]s out; [`change`]
//! applies them, and [`undo`] stores the information that a text does not contain.

pub mod change;
pub mod containerd;
pub mod crio;
pub mod docker;
pub mod oci_hook;
pub mod undo;

mod tables;

pub use change::Change;

/// The runtime to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The name by which containers request it.
    pub name: String,
    /// The program.
    pub path: String,
    /// Make it the default for containers that request no runtime.
    pub set_as_default: bool,
    /// Let the engine resolve CDI names itself.
    pub enable_cdi: bool,
}

#[cfg(test)]
mod tests;
