//! Registers the NVIDIA runtime with container engines, and takes it out again.
//!
//! Users' files are edited, not rewritten: comments, order and keys that we do not know survive, what cannot be parsed is
//! left alone, and undoing gives back the bytes that were there. Each engine's module is pure: texts in, [`Change`]s out;
//! [`change`] carries them out and [`undo`] remembers what a text does not tell.

pub mod change;
pub mod containerd;
pub mod crio;
pub mod docker;
pub mod oci_hook;
pub mod undo;

mod attributes;
mod tables;

pub use change::Change;

/// The runtime that an engine is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The name by which containers ask for it.
    pub name: String,
    /// The program.
    pub path: String,
    /// Containers that ask for nothing get it too.
    pub set_as_default: bool,
    /// The engine is to resolve CDI names itself.
    pub enable_cdi: bool,
}

#[cfg(test)]
mod tests;
