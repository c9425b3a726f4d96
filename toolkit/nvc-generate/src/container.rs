//! Returns the edits for one container.

use libnvc::Result;
use libnvc::request::Request;
use libnvc::survey::Host;

use crate::content::{Content, VOID, check};
use crate::draft::Draft;
use crate::{Automatic, Options, modes, simplify};

/// What one container gets.
#[derive(Debug)]
pub struct ContainerEdits {
    /// The edits of its devices, then those for all containers.
    pub edits: Draft,
    /// Warnings in order of occurrence.
    pub warnings: Vec<String>,
    /// The driver and the chosen devices, if NVML was queried.
    pub host: Option<Host>,
}

/// Finds the devices of a container's request, and returns the edits for it.
///
/// # Errors
/// As [`generate`](crate::generate), and those of [`libnvc::plan::plan`], with their phase.
pub fn for_container(options: &Options, request: &Request) -> Result<ContainerEdits> {
    edits(modes::find(options, request)?)
}

/// Works like [`for_container`], but leaves the GPUs of a Jetson to the caller.
///
/// # Errors
/// As [`for_container`].
pub fn for_container_unless_jetson(
    options: &Options,
    request: Request,
) -> Result<Automatic<ContainerEdits>> {
    modes::find_unless_jetson(options, request)?.and_then(edits)
}

fn edits(content: Content) -> Result<ContainerEdits> {
    let Content {
        mut devices,
        mut common,
        warnings,
        host,
        ..
    } = content;
    common.add_variable(VOID);
    simplify::parts(&mut devices, &mut common);
    check(&devices, &warnings)?;
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    let mut edits = Draft::default();
    for device in &devices {
        edits.append(&device.draft);
    }
    edits.join_links();
    edits.append(&common);
    Ok(ContainerEdits {
        edits,
        warnings,
        host,
    })
}
