//! Narrows a list of GPUs to those that another list allows.
//!
//! GPUs are compared as devices: `1`, `nvidia.com/gpu=1` and `GPU-…` can be the same one. Equal names are the same.
//! Everything else is asked of the [`Machine`], although its answer costs a query of the driver.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use indexmap::IndexSet;
use libnvc::request::MAX_NAMES;
use nvc_cdi::names::{self, QualifiedName};

use super::distinct::distinct;
use super::qualified::AUTOMATIC;
use super::{Devices, Error, Kinds};

/// Knows which devices names denote.
pub trait Machine {
    /// Returns what a name denotes, with or without a kind.
    ///
    /// # Errors
    /// The driver does not respond; the name is the start of several UUIDs.
    fn denoted(&self, name: &str) -> libnvc::Result<Denoted>;

    /// Returns the qualified names of all devices of a kind.
    fn names(&self, kind: &str) -> Vec<String>;
}

/// What a name denotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denoted {
    /// GPUs and MIG devices, by their UUIDs.
    Gpus(Vec<String>),
    /// Anything else of a specification: no other nodes are the same device.
    Nodes(BTreeSet<NodeNumber>),
    /// Nothing that is known.
    Unknown,
}

/// Type, major and minor number of a node.
pub type NodeNumber = (String, u64, u64);

impl Denoted {
    /// Returns what these UUIDs are: unknown if there are none.
    #[must_use]
    pub fn gpus(uuids: Vec<String>) -> Self {
        if uuids.is_empty() {
            Self::Unknown
        } else {
            Self::Gpus(uuids)
        }
    }
}

/// Returns those of `names` that `by` allows. A name of all GPUs becomes one name for each allowed GPU.
///
/// # Errors
/// Different names cannot be compared because the driver does not respond, or because one is the start of
/// several UUIDs; or too many are left.
pub(super) fn narrow(
    names: &[String],
    by: &Devices,
    kinds: &Kinds<'_>,
    machine: &dyn Machine,
) -> Result<Vec<String>, Error> {
    let allowed = match by {
        Devices::All => return Ok(names.to_vec()),
        Devices::None => return Ok(Vec::new()),
        Devices::Names(allowed) => AllowList::new(allowed, kinds, machine),
    };
    // The container would get no GPU, whatever else the list names.
    if let Some(none) = names.iter().find(|name| is_none(name)) {
        return Ok(vec![none.clone()]);
    }
    if allowed.names.iter().any(|name| is_none(name)) {
        return Ok(Vec::new());
    }
    let failed = |error: libnvc::Error| Error::Compare {
        names: names.join(","),
        with: by.to_string(),
        cause: error.message(),
    };
    let mut left = Vec::new();
    for name in names {
        if allowed.all.contains(name.as_str()) {
            left.push(name.clone());
        } else if !kinds.may_be_gpu(name) {
            // Only the same name is the same device.
        } else if allowed.denote(name).map_err(failed)? {
            left.push(name.clone());
        } else if let Some(kind) = kind_of_all(name, kinds) {
            left.extend(allowed.of_kind(kind).map_err(failed)?);
        }
        // Several names of all GPUs multiply.
        if left.len() > MAX_NAMES {
            return Err(Error::TooManyNames {
                source: names.join(","),
                number: left.len(),
            });
        }
    }
    Ok(distinct(left.iter().map(String::as_str)))
}

/// Returns true for the name of no device: a generated specification has none then, whatever else is named.
fn is_none(name: &str) -> bool {
    names::parse(name).is_some_and(|name| name.kind == AUTOMATIC && name.device == "none")
}

/// Returns the kind of a name of all its devices; None for other names.
fn kind_of_all<'a>(name: &'a str, kinds: &Kinds<'a>) -> Option<&'a str> {
    match names::parse(name) {
        Some(QualifiedName { kind, device, .. }) => (device == "all").then_some(kind),
        None => (name == "all").then_some(kinds.default),
    }
}

/// A list that allows GPUs, indexed: images choose how long it is.
struct AllowList<'a> {
    /// All of them.
    all: HashSet<&'a str>,
    /// Those that can be GPUs.
    names: Vec<&'a str>,
    devices: OnceCell<AllowedDevices>,
    machine: &'a dyn Machine,
}

/// What the names of a list denote.
#[derive(Default)]
struct AllowedDevices {
    /// In the order of the list.
    uuids: IndexSet<String>,
    nodes: HashSet<BTreeSet<NodeNumber>>,
}

impl<'a> AllowList<'a> {
    fn new(names: &'a [String], kinds: &Kinds<'_>, machine: &'a dyn Machine) -> Self {
        let names = names.iter().map(String::as_str);
        Self {
            all: names.clone().collect(),
            names: names.filter(|name| kinds.may_be_gpu(name)).collect(),
            devices: OnceCell::new(),
            machine,
        }
    }

    /// Returns true if a name that is not in the list denotes devices that are.
    fn denote(&self, name: &str) -> libnvc::Result<bool> {
        Ok(match self.machine.denoted(name)? {
            Denoted::Gpus(uuids) => {
                let allowed = &self.devices()?.uuids;
                // No list of nothing is allowed.
                !uuids.is_empty() && uuids.iter().all(|uuid| allowed.contains(uuid))
            }
            Denoted::Nodes(nodes) => self.devices()?.nodes.contains(&nodes),
            Denoted::Unknown => false,
        })
    }

    fn devices(&self) -> libnvc::Result<&AllowedDevices> {
        if let Some(known) = self.devices.get() {
            return Ok(known);
        }
        let mut all = AllowedDevices::default();
        for name in &self.names {
            match self.machine.denoted(name)? {
                Denoted::Gpus(uuids) => all.uuids.extend(uuids),
                Denoted::Nodes(nodes) => drop(all.nodes.insert(nodes)),
                Denoted::Unknown => {}
            }
        }
        Ok(self.devices.get_or_init(|| all))
    }

    /// Returns those devices of a kind that are one allowed GPU or MIG device each, in the order of the list.
    fn of_kind(&self, kind: &str) -> libnvc::Result<Vec<String>> {
        let Denoted::Gpus(all) = self.machine.denoted(&format!("{kind}=all"))? else {
            return Ok(Vec::new());
        };
        let all: HashSet<String> = all.into_iter().collect();
        let allowed = self.devices()?.uuids.iter();
        let shared = allowed.filter(|uuid| all.contains(*uuid));
        if kind == AUTOMATIC {
            return Ok(shared.map(|uuid| format!("{kind}={uuid}")).collect());
        }
        let index = self.by_uuid(&self.machine.names(kind))?;
        Ok(shared.filter_map(|uuid| index.get(uuid).cloned()).collect())
    }

    /// Indexes the devices of a specification that are one GPU or MIG device.
    fn by_uuid(&self, names: &[String]) -> libnvc::Result<HashMap<String, String>> {
        let mut index = HashMap::new();
        for name in names {
            if let Denoted::Gpus(uuids) = self.machine.denoted(name)?
                && let Ok([uuid]) = <[String; 1]>::try_from(uuids)
            {
                index.entry(uuid).or_insert_with(|| name.clone());
            }
        }
        Ok(index)
    }
}
