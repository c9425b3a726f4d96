//! Gives a container a Jetson's GPU according to the file lists of its operating system.
//!
//! A list has lines `TYPE, PATH`. [`list`] parses them, [`files`] finds the files on the host and creates CDI edits,
//! [`compat`] asks the driver for its CUDA version, [`requirements`] checks the image's requirements.

pub mod compat;
pub mod files;
pub mod list;
pub mod requirements;

pub use files::Tree;
pub use list::{Entry, Kind};
