//! Builds simulated driver roots: directories that look like a machine with the NVIDIA driver installed and loaded.
//!
//! A root has libraries with the real names and SONAMEs and a linker cache over them, a libnvidia-ml.so.1 that answers
//! from a profile, programs, firmware, sockets, device nodes and procfs files. libnvc takes it as its driver root.
//! Files that this process may not create (device nodes without the privilege) are omitted and reported.

mod build;
mod builder;
mod contents;
mod hardware;
mod layout;
mod libraries;
mod native;
mod nodes;
mod procfs;
mod root;
#[cfg(test)]
mod tests;

pub use builder::Builder;
pub use libraries::Library;
pub use native::{NATIVE, TRIPLET};
pub(crate) use procfs::use_majors_of;
pub use procfs::{Majors, compute_instance_minor, free_majors, gpu_instance_minor};
pub use root::Driver;
