//! Adds a container's devices to `DeviceAllow` of its systemd unit, so that a reload does not take them away.
//!
//! systemd attaches a filter to a unit with a closed list of devices, and replaces it whenever units are reloaded or
//! the unit is changed: devices that systemd does not know are lost then. A unit without such a list is left alone,
//! because one entry would deny every other device to its processes; a unit that has other processes, because these
//! would get the devices too. No file is written and no program executed; the entries last as long as the unit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use log::{debug, info, warn};
use nix::errno::Errno;

mod bus;
pub(crate) mod wire;

use super::message::list;
use super::occupants::{Others, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::host::DeviceNumber;
use bus::{Connection, Method};
use wire::{Body, Entry, Value};

/// Time limits: of all calls for a container, and of the undo.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT_OF_UNDO: Duration = Duration::from_secs(1);

/// Exists exactly where systemd is the first process: sd_booted(3).
const BOOTED: &str = "/run/systemd/system";
const PRIVATE: &str = "/run/systemd/private";
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// The consequence of a unit without the entries, for warnings.
const CONSEQUENCE: &str = "the container may lose its devices when units are reloaded or changed, as by systemctl daemon-reload";

/// Names of errors that say that systemd has no such unit.
const UNKNOWN: [&str; 5] = [
    "org.freedesktop.DBus.Error.UnknownObject",
    "org.freedesktop.DBus.Error.UnknownInterface",
    "org.freedesktop.DBus.Error.UnknownProperty",
    "org.freedesktop.DBus.Error.UnknownMethod",
    "org.freedesktop.systemd1.NoSuchUnit",
];

/// Where systemd is reached, in the caller's namespaces.
#[derive(Debug)]
pub(crate) struct Sockets {
    booted: PathBuf,
    private: PathBuf,
    bus: PathBuf,
}

/// A unit with a closed list of devices, of a container that has not been changed yet.
#[derive(Debug)]
pub(in crate::apply) struct Unit {
    connection: Connection,
    name: String,
    /// The list.
    entries: Vec<Entry>,
}

/// A unit whose list was extended.
#[derive(Debug)]
pub(in crate::apply) struct ExtendedUnit {
    connection: Connection,
    name: String,
    /// The former list.
    former: Vec<Entry>,
}

/// systemd's answer about the unit of a cgroup.
enum Answer {
    /// It has this closed list of devices.
    Restricts(Vec<Entry>),
    /// Its policy is `auto`: any entry closes the list.
    Auto(Vec<Entry>),
    /// There is no such unit, for this reason.
    Nothing(&'static str),
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            booted: BOOTED.into(),
            private: PRIVATE.into(),
            bus: SYSTEM_BUS.into(),
        }
    }
}

impl Sockets {
    /// Returns true if systemd may have a unit for a cgroup, given its path in the hierarchy.
    ///
    /// Costs one system call, and only if the name is that of a unit.
    pub(in crate::apply) fn may_know(&self, group: &Path) -> bool {
        candidates(group).next().is_some() && self.booted.symlink_metadata().is_ok()
    }

    /// Finds the unit of a cgroup, or of its parent, if it has a closed list of devices and no `others` than the container.
    ///
    /// Call this in the caller's namespaces: the container's /run is the image's. Warns if systemd cannot be asked, or
    /// if entries must not be added to the unit.
    pub(in crate::apply) fn find(
        &self,
        group: &Path,
        others: impl Fn(Place) -> std::result::Result<Others, Errno>,
    ) -> Option<Unit> {
        let mut candidates = candidates(group).peekable();
        let (_, name, _) = candidates.peek()?;
        let mut connection = self
            .connect()
            .inspect_err(|error| cannot_ask(name, error))
            .ok()?;
        for (place, name, control_group) in candidates {
            let answer = ask(&mut connection, &name, control_group);
            match answer.inspect_err(|error| cannot_ask(&name, error)).ok()? {
                Answer::Nothing(reason) => debug!("systemd's unit {name}: {reason}"),
                Answer::Auto(entries) if entries.is_empty() => {
                    debug!("systemd's unit {name} does not restrict devices");
                    return None;
                }
                Answer::Auto(_) => {
                    warn!(
                        "systemd's unit {name} has DevicePolicy=auto and is left alone; {CONSEQUENCE}"
                    );
                    return None;
                }
                Answer::Restricts(entries) => {
                    if let Some(reason) = reason_not_to_tell(others(place)) {
                        warn!(
                            "systemd's unit {name} is left alone, because {reason}; {CONSEQUENCE}"
                        );
                        return None;
                    }
                    return Some(Unit {
                        connection,
                        name,
                        entries,
                    });
                }
            }
        }
        None
    }

    /// Connects to the private socket, which needs no bus; if that fails, to the bus.
    fn connect(&self) -> Result<Connection> {
        let start = std::time::Instant::now();
        let error = match Connection::private(&self.private, TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let left = TIMEOUT.saturating_sub(start.elapsed());
        debug!("systemd's private socket: {}", error.message());
        match Connection::system(&self.bus, left) {
            Ok(connection) => Ok(connection),
            Err(second) => Err(second.context(error.message())),
        }
    }
}

/// Returns why entries must not be added to a unit; None if all its processes are the container's.
fn reason_not_to_tell(others: std::result::Result<Others, Errno>) -> Option<String> {
    Some(match others {
        Ok(Others::Nothing) => return None,
        Ok(Others::Process(pid)) => format!("process {pid} of it is not the container's"),
        Ok(Others::TooMany) => "it has too many processes or cgroups to look at".to_owned(),
        Err(errno) => format!("its processes cannot be read: {}", errno.desc()),
    })
}

fn cannot_ask(name: &str, error: &Error) {
    warn!(
        "systemd cannot be asked about unit {name}: {}; {CONSEQUENCE}",
        error.message()
    );
}

/// Asks for a unit's cgroup and devices.
fn ask(connection: &mut Connection, name: &str, control_group: &Path) -> Result<Answer> {
    let path = wire::unit_path(name);
    let interface = if name.ends_with(".scope") {
        "org.freedesktop.systemd1.Scope"
    } else {
        "org.freedesktop.systemd1.Service"
    };
    let get = |property: &str| Method {
        path: &path,
        interface: "org.freedesktop.DBus.Properties",
        member: "Get",
        body: Body::property(interface, property),
    };
    let properties = ["ControlGroup", "DevicePolicy", "DeviceAllow"];
    let [group, policy, allowed] = connection.call(properties.map(get))?;
    let is_unknown = |error: &String| UNKNOWN.contains(&error.as_str());
    if group.as_ref().is_err_and(is_unknown) {
        return Ok(Answer::Nothing("systemd does not know it"));
    }
    let (Value::Text(group), Value::Text(policy), Value::Entries(entries)) =
        (known(group)?, known(policy)?, known(allowed)?)
    else {
        let text = "systemd's answer has values of other types";
        return Err(Error::new(ErrorKind::Malformed, text));
    };
    if Path::new(&group) != control_group {
        return Ok(Answer::Nothing("it has another cgroup"));
    }
    Ok(match policy.as_str() {
        "closed" | "strict" => Answer::Restricts(entries),
        _ => Answer::Auto(entries),
    })
}

fn known(outcome: std::result::Result<Value, String>) -> Result<Value> {
    outcome.map_err(|name| Error::new(ErrorKind::System, "systemd refused").with_cause(name))
}

impl Unit {
    /// Adds the devices that are missing in the unit's list; None if there are none.
    ///
    /// If systemd refuses, there is a warning.
    pub(in crate::apply) fn allow(mut self, devices: &[DeviceNumber]) -> Option<ExtendedUnit> {
        let added = missing(&self.entries, devices);
        if added.is_empty() {
            return None;
        }
        let outcome = tell(&mut self.connection, &self.name, &[&added]);
        let (refused, failure) = match outcome {
            Ok(Ok(())) => (false, None),
            Ok(Err(error)) => (true, Some(error)),
            Err(error) => (false, Some(error)),
        };
        match failure {
            None => info!(
                "told systemd that unit {} may open {}",
                self.name,
                list(devices)
            ),
            Some(error) => warn!(
                "systemd did not add {} to the devices of unit {}: {}; {CONSEQUENCE}",
                list(devices),
                self.name,
                error.message()
            ),
        }
        // Without an answer it is unknown whether the list was changed.
        (!refused).then_some(ExtendedUnit {
            connection: self.connection,
            name: self.name,
            former: self.entries,
        })
    }
}

impl ExtendedUnit {
    /// Sets the former list again.
    pub(in crate::apply) fn undo(mut self) -> Result<()> {
        self.connection.extend(TIMEOUT_OF_UNDO);
        let restored = tell(&mut self.connection, &self.name, &[&[], &self.former]);
        restored.and_then(|answer| answer).map_err(|error| {
            let text = format!("restoring the devices of systemd's unit {}", self.name);
            error.context(text)
        })
    }
}

/// Adds lists to a unit's devices; an empty one removes what was there. The inner error is systemd's refusal.
fn tell(connection: &mut Connection, unit: &str, lists: &[&[Entry]]) -> Result<Result<()>> {
    let method = Method {
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "SetUnitProperties",
        body: Body::device_lists(unit, lists),
    };
    let [outcome] = connection.call([method])?;
    Ok(known(outcome).map(drop))
}

/// Returns names of units that a cgroup and its parent can belong to, with these cgroups.
///
/// Scopes and services only: a slice's processes are in other units. systemd prefixes names that could be the kernel's.
fn candidates(group: &Path) -> impl Iterator<Item = (Place, String, &Path)> {
    let places = [Place::Own, Place::Parent].into_iter();
    places.zip(group.ancestors()).filter_map(|(place, group)| {
        let name = group.file_name()?.to_str()?;
        let name = name.strip_prefix('_').unwrap_or(name);
        let is_unit = [".scope", ".service"]
            .iter()
            .any(|kind| name.ends_with(kind));
        is_unit.then(|| (place, name.to_owned(), group))
    })
}

/// Returns the entries to add, so that a list has all devices for reading and writing.
///
/// An entry for the same path replaces the old one, whose other access is kept.
fn missing(entries: &[Entry], devices: &[DeviceNumber]) -> Vec<Entry> {
    let is_enough = |access: &str| access.contains('r') && access.contains('w');
    let all = |(path, access): &Entry| path == "char-*" && is_enough(access);
    if entries.iter().any(all) {
        return Vec::new();
    }
    let own: std::collections::HashMap<&str, &str> = entries
        .iter()
        .map(|(path, access)| (path.as_str(), access.as_str()))
        .collect();
    let entry = |device: &DeviceNumber| {
        let path = format!("/dev/char/{device}");
        let access = own.get(path.as_str()).copied().unwrap_or_default();
        let kept = if access.contains('m') { "rwm" } else { "rw" };
        (!is_enough(access)).then(|| (path, kept.to_owned()))
    };
    devices.iter().filter_map(entry).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
