//! Allows more character devices in a device cgroup, and undoes that.
//!
//! The rule for each device is upstream's: reading and writing, without mknod. The mechanism depends on the version:
//! lines written to files ([`v1`]), or an exchanged program ([`v2`]). Either way only missing rules are added, and
//! exactly those are undone.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

use log::{debug, info};

mod message;
pub(crate) mod program;
pub(crate) mod v1;
pub(crate) mod v2;

use crate::container::CgroupVersion;
use crate::error::Result;
use crate::host::DeviceNumber;

use message::list;

/// The rules added to a device cgroup; they stay when this is dropped.
#[derive(Debug)]
#[must_use = "the rules cannot be undone without it"]
pub struct DeviceRules(AddedRules);

#[derive(Debug)]
enum AddedRules {
    Nothing,
    V1(v1::AddedLines),
    V2(v2::ReplacedPrograms),
}

impl DeviceRules {
    /// Returns true if no rule was missing.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            AddedRules::Nothing => true,
            AddedRules::V1(added) => added.is_empty(),
            AddedRules::V2(added) => added.is_empty(),
        }
    }

    /// Removes the rules as far as possible; reports the first failure, with the others attached.
    ///
    /// Rules that another process has changed concurrently stay.
    pub fn undo(self) -> Result<()> {
        let failures = match self.0 {
            AddedRules::Nothing => Vec::new(),
            AddedRules::V1(added) => added.undo(),
            AddedRules::V2(added) => added.undo(),
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
    devices: &[DeviceNumber],
    name: &Path,
) -> Result<DeviceRules> {
    // Without duplicates, in the caller's order.
    let mut seen = HashSet::with_capacity(devices.len());
    let devices: Vec<DeviceNumber> = devices
        .iter()
        .copied()
        .filter(|device| seen.insert(*device))
        .collect();
    if devices.is_empty() {
        return Ok(DeviceRules(AddedRules::Nothing));
    }
    let added = match version {
        CgroupVersion::V1 => v1::allow(cgroup, &devices, name).map(AddedRules::V1),
        CgroupVersion::V2 => v2::allow(cgroup, &devices, name).map(AddedRules::V2),
    };
    let rules = DeviceRules(added.map_err(|e| e.context("failed to add device rules"))?);
    if rules.is_empty() {
        debug!("device cgroup {} needs no more rules", name.display());
    } else {
        info!(
            "allowing devices {} in cgroup {}",
            list(&devices),
            name.display()
        );
        mention_systemd(name);
    }
    Ok(rules)
}

/// Logs that systemd will drop the rules.
///
/// Recognises systemd by the cgroup's name, because /run is the container's here. This is not a warning: on a host
/// where systemd creates the cgroups it would appear for each container, and nothing breaks until `systemctl
/// daemon-reload`.
fn mention_systemd(name: &Path) {
    let unit = name
        .extension()
        .is_some_and(|e| e == "scope" || e == "service");
    if unit {
        info!(
            "cgroup {} belongs to systemd: 'systemctl daemon-reload' and changes of the unit drop the device rules",
            name.display()
        );
    }
}
