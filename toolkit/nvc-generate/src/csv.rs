//! Adds a Jetson's GPUs to containers, according to the file lists of its operating system.
//!
//! A list has lines `TYPE, PATH`. [`list`] parses them, [`files`] finds the files on the host,
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
pub use files::{RELEASE, Tree};
pub use list::{Entry, Kind};

use libnvc::Result;
use libnvc::plan::Intent;

use crate::exposed::Exposure;

use usual_links::usual_links;

/// What the lists give for chosen GPUs.
#[derive(Debug)]
pub struct Found {
    /// The nodes of each GPU, in the order of the choice.
    pub(crate) devices: Vec<(ChosenGpu, Vec<Intent>)>,
    /// The files for every container.
    pub(crate) common: Vec<Intent>,
    /// Warnings, each once.
    pub warnings: Vec<String>,
}

impl Found {
    /// Returns all of it for one container.
    pub fn into_intents(self) -> Vec<Intent> {
        let devices = self.devices.into_iter().flat_map(|(_, intents)| intents);
        let mut all: Vec<Intent> = devices.chain(self.common).collect();
        // Two GPUs share the nodes of the SoC.
        once(&mut all);
        all
    }
}

/// Finds what the lists' entries give for chosen GPUs, and the nodes that only the driver knows.
///
/// # Errors
/// A node that a discrete GPU needs is missing, or another user could exchange the nodes.
pub fn find(tree: &Tree, entries: &[Entry], choice: &Choice, driver: &Driver) -> Result<Found> {
    Exposure::of_nodes(&tree.nodes.root)?;
    let mut warnings: Vec<String> = choice.warning.iter().cloned().collect();
    let mut devices = Vec::new();
    for chosen in &choice.devices {
        let (intents, more) = tree.device(entries, chosen, driver.gpus())?;
        warnings.extend(more);
        devices.push((chosen.clone(), intents));
    }
    let (mut common, more) = tree.common(entries)?;
    common.splice(0..0, usual_links(&common));
    warnings.extend(more);
    once(&mut warnings);
    Ok(Found {
        devices,
        common,
        warnings,
    })
}

/// Keeps each item once.
fn once<T: Clone + Eq + std::hash::Hash>(items: &mut Vec<T>) {
    let mut seen = std::collections::HashSet::new();
    items.retain(|item| seen.insert(item.clone()));
}
