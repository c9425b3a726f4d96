//! Allows more character devices in a device cgroup, and undoes that.
//!
//! The rule for each device is upstream's: reading and writing, without mknod. The mechanism depends on the version:
//! lines written to files ([`v1`]), or an exchanged program ([`v2`]). Either way only missing rules are added, and
//! exactly those are undone.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use log::{debug, info};

mod message;
mod occupants;
pub(crate) mod program;
pub(in crate::apply) mod rootless;
pub(crate) mod systemd;
pub(crate) mod v1;
pub(crate) mod v2;

use crate::container::{CgroupVersion, ContainerProcess, DeviceCgroup};
use crate::error::{Error, Result, errno_of};
use crate::host::DeviceNumber;

use message::list;
use systemd::{Sockets, Unit};

/// A device that the processes of a cgroup should be able to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WantedDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// True if a container that cannot open it cannot use a GPU that it was given.
    pub is_vital: bool,
}

/// The rules added to a device cgroup; they stay when this is dropped.
#[derive(Debug)]
#[must_use = "the rules cannot be undone without it"]
pub struct DeviceRules {
    cgroup: OwnedFd,
    name: PathBuf,
    added: AddedRules,
}

#[derive(Debug)]
enum AddedRules {
    Lines(Vec<String>),
    Programs(Vec<v2::Exchange>),
}

impl DeviceRules {
    /// Returns true if no rule was missing.
    pub fn is_empty(&self) -> bool {
        match &self.added {
            AddedRules::Lines(lines) => lines.is_empty(),
            AddedRules::Programs(exchanges) => exchanges.is_empty(),
        }
    }

    /// Removes the rules as far as possible; reports the first failure, with the others attached.
    ///
    /// Rules that another process has changed concurrently stay.
    pub fn undo(self) -> Result<()> {
        let (cgroup, name) = (self.cgroup.as_fd(), &*self.name);
        let failures = match &self.added {
            AddedRules::Lines(lines) => v1::undo(cgroup, lines, name),
            AddedRules::Programs(exchanges) => v2::undo(cgroup, exchanges, name),
        };
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Ok(()),
            Some(first) => Err(first
                .context("failed to remove device rules")
                .with_cleanup(failures)),
        }
    }
}

/// Allows the processes of a cgroup to open character devices for reading and writing: all of the devices, or none.
///
/// `cgroup` is the cgroup's directory, opened by reference (`O_PATH`) or normally; `name` is its name for messages.
/// Needs `CAP_SYS_ADMIN` in the initial user namespace. A cgroup that already allows the devices is not changed.
pub fn allow(
    cgroup: BorrowedFd<'_>,
    version: CgroupVersion,
    devices: &[WantedDevice],
    name: &Path,
) -> Result<DeviceRules> {
    let vital: HashSet<DeviceNumber> = devices
        .iter()
        .filter(|device| device.is_vital)
        .map(|device| device.number)
        .collect();
    let devices = numbers(devices);
    let failed = |error: Error| error.context("failed to add device rules");
    let copy = cgroup
        .try_clone_to_owned()
        .map_err(|e| Error::system("duplicating a descriptor", errno_of(&e)));
    let mut rules = DeviceRules {
        cgroup: copy.map_err(failed)?,
        name: name.to_owned(),
        added: AddedRules::Lines(Vec::new()),
    };
    if devices.is_empty() {
        return Ok(rules);
    }
    let added = match version {
        CgroupVersion::V1 => v1::allow(cgroup, &devices, name).map(AddedRules::Lines),
        CgroupVersion::V2 => v2::allow(cgroup, &devices, &vital, name).map(AddedRules::Programs),
    };
    rules.added = added.map_err(failed)?;
    if rules.is_empty() {
        debug!("device cgroup {} needs no more rules", name.display());
    } else {
        info!(
            "allowing devices {} in cgroup {}",
            list(&devices),
            name.display()
        );
    }
    Ok(rules)
}

/// Finds systemd's unit that restricts the devices of a container, and of nothing else, if a device may be denied. Call
/// this in the host's namespaces.
pub(in crate::apply) fn unit(
    directory: BorrowedFd<'_>,
    cgroup: &DeviceCgroup,
    process: &ContainerProcess,
    devices: &[WantedDevice],
) -> Option<Unit> {
    let sockets = Sockets::default();
    let is_needed = sockets.may_know(&cgroup.group)
        && may_deny(
            directory,
            cgroup.version,
            &numbers(devices),
            &cgroup.directory,
        );
    let others = |place| occupants::others(directory, place, process);
    is_needed.then(|| sockets.find(&cgroup.group, others))?
}

/// Returns true if a rule of a cgroup, or of one above it, may deny a device; false if that cannot be read.
fn may_deny(
    cgroup: BorrowedFd<'_>,
    version: CgroupVersion,
    devices: &[DeviceNumber],
    name: &Path,
) -> bool {
    match version {
        CgroupVersion::V1 => v1::may_deny(cgroup, devices, name),
        CgroupVersion::V2 => v2::may_deny(cgroup, devices),
    }
}

/// Returns the devices' numbers without duplicates, in the caller's order.
pub(in crate::apply) fn numbers(devices: &[WantedDevice]) -> Vec<DeviceNumber> {
    let mut seen = HashSet::with_capacity(devices.len());
    let numbers = devices.iter().map(|device| device.number);
    numbers.filter(|number| seen.insert(*number)).collect()
}
