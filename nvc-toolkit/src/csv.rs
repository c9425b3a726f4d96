//! Gives a container the GPU of a Jetson by the lists of files that its operating system keeps for this purpose.
//!
//! A list has lines `TYPE, PATH`. [`list`] reads them, [`files`] finds what they name on the host and makes CDI edits
//! of it, [`requirements`] checks what the image demands.

pub mod files;
pub mod list;
pub mod requirements;

pub use files::Tree;
pub use list::{Entry, Kind};
