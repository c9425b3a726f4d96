//! Adds a Jetson's GPUs to containers, according to the file lists of its operating system.
//!
//! A list has lines `TYPE, PATH`. [`list`] parses them, [`files`] finds the files on the host and creates CDI edits,
//! [`driver`] asks the driver for its [`listing`], [`choice`] decides which GPUs a request means, [`devices`] finds their
//! nodes, [`requirements`] checks the image's requirements. `nvidia-ctk cdi generate` and the runtime use all of it.
//!
//! The lists describe one GPU, the integrated one. A machine can also have a discrete GPU, which the driver describes.

pub mod choice;
pub mod devices;
pub mod driver;
pub mod files;
pub mod list;
pub mod listing;
pub mod requirements;

pub use choice::{Choice, ChosenGpu, RequestedGpus, choose};
pub use driver::Driver;
pub use files::Tree;
pub use list::{Entry, Kind};

/// Keeps the first item of each name.
pub fn once<T>(items: &mut Vec<T>, name: impl Fn(&T) -> String) {
    let mut seen = std::collections::HashSet::new();
    items.retain(|item| seen.insert(name(item)));
}
