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
mod usual_links;

pub use choice::{Choice, ChosenGpu, RequestedGpus, choose};
pub use driver::Driver;
pub use files::Tree;
pub use list::{Entry, Kind};

use libnvc::Result;

use nvc_program::hook_names;

use crate::draft::{Draft, DraftHook, repeated};
use usual_links::usual_links;

/// What the lists give for chosen GPUs.
#[derive(Debug)]
pub struct Found {
    /// The nodes of each GPU, in the order of the choice.
    pub(crate) devices: Vec<(ChosenGpu, Draft)>,
    /// The files for every container.
    pub(crate) common: Draft,
    /// Warnings, each once.
    pub warnings: Vec<String>,
}

impl Found {
    /// Returns all of it for one container.
    pub fn into_draft(self) -> Draft {
        let mut all = Draft::default();
        for (_, draft) in &self.devices {
            all.append(draft);
        }
        all.append(&self.common);
        all.join_links();
        // Two GPUs share the nodes of the SoC.
        once(&mut all.edits.device_nodes, |node| node.path.clone());
        all
    }
}

/// Finds what the lists' entries give for chosen GPUs, and the nodes that only the driver knows.
///
/// # Errors
/// A node that a discrete GPU needs is missing.
pub fn find(tree: &Tree, entries: &[Entry], choice: &Choice, driver: &Driver) -> Result<Found> {
    let mut warnings: Vec<String> = choice.warning.iter().cloned().collect();
    let mut devices = Vec::new();
    for chosen in &choice.devices {
        let (draft, more) = tree.device(entries, chosen, driver.gpus())?;
        warnings.extend(more);
        devices.push((chosen.clone(), draft));
    }
    let (mut common, more) = tree.common(entries)?;
    let links = usual_links(&common.edits.mounts);
    if !links.is_empty() {
        let hook = DraftHook::new(hook_names::CREATE_SYMLINKS, repeated("--link", links));
        common.hooks.insert(0, hook);
    }
    warnings.extend(more);
    once(&mut warnings, String::clone);
    Ok(Found {
        devices,
        common,
        warnings,
    })
}

/// Keeps the first item of each name.
fn once<T>(items: &mut Vec<T>, name: impl Fn(&T) -> String) {
    let mut seen = std::collections::HashSet::new();
    items.retain(|item| seen.insert(name(item)));
}
