//! Narrows a list of GPUs to those that another list allows.
//!
//! GPUs are compared as devices: `1`, `nvidia.com/gpu=1` and `GPU-…` can be the same one. Equal names are the same, and
//! names without a kind are compared as text if they have the same form. Everything else is asked of the [`Machine`],
//! although its answer costs a query of the driver: what a CDI name denotes is in its specification only.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::mem::discriminant;

use indexmap::IndexSet;
use libnvc::DeviceName;
use libnvc::request::MAX_NAMES;
use nvc_cdi::names::{self, QualifiedName};

use super::distinct::distinct;
use super::qualified::AUTOMATIC;
use super::{Devices, Error, Kinds};

/// Length of a whole UUID.
const UUID_LEN: usize = 36;

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

/// A device as its name describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Id<'a> {
    /// The index of a GPU.
    Gpu(u32),
    /// The indices of a GPU and of its MIG device.
    Mig(u32, u32),
    Uuid(Uuid<'a>),
    /// Only the machine knows what this name denotes.
    Unknown(&'a str),
}

/// A UUID as text, in any case. It borrows the name: images choose how many there are.
#[derive(Clone, Copy, Debug, Eq)]
struct Uuid<'a>(&'a str);

impl PartialEq for Uuid<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(other.0)
    }
}

impl Hash for Uuid<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for byte in self.0.bytes() {
            state.write_u8(byte.to_ascii_lowercase());
        }
        state.write_u8(0xff);
    }
}

impl<'a> Id<'a> {
    fn of(name: &'a str) -> Self {
        // What a CDI name denotes is in its specification.
        if names::is_qualified(name) {
            return Self::Unknown(name);
        }
        match DeviceName::parse(name) {
            Some(DeviceName::Gpu(gpu)) => Self::Gpu(gpu),
            Some(DeviceName::Mig(gpu, mig)) => Self::Mig(gpu, mig),
            Some(DeviceName::Uuid(uuid)) if is_whole(uuid) => Self::Uuid(Uuid(uuid)),
            Some(DeviceName::Uuid(_) | DeviceName::Instances(..) | DeviceName::Address(_))
            | None => Self::Unknown(name),
        }
    }

    /// Returns true if different ids of these forms can denote the same device.
    fn can_equal(self, other: Self) -> bool {
        match (self, other) {
            (Self::Unknown(_), _) | (_, Self::Unknown(_)) => true,
            (Self::Uuid(_), other) | (other, Self::Uuid(_)) => !matches!(other, Self::Uuid(_)),
            (Self::Gpu(_) | Self::Mig(..), Self::Gpu(_) | Self::Mig(..)) => false,
        }
    }
}

/// Returns true for a whole UUID. Which device the start of one denotes, the machine knows; so are those of MIG devices
/// with old drivers, `MIG-GPU-<UUID>/<GI>/<CI>`, which can be the start of another one.
fn is_whole(uuid: &str) -> bool {
    let start = uuid.get(.."MIG-GPU-".len()).unwrap_or_default();
    uuid.len() == "GPU-".len() + UUID_LEN && !start.eq_ignore_ascii_case("MIG-GPU-")
}

/// Returns those of `names` that `by` allows. A name of all GPUs becomes one name for each allowed GPU.
///
/// # Errors
/// Names of different forms cannot be compared because the driver does not respond, or because one is the start of
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
        let id = Id::of(name);
        if allowed.ids.contains(&id) {
            left.push(name.clone());
        } else if !kinds.may_be_gpu(name) {
            // Only the same name is the same device.
        } else if allowed.denote(name, id).map_err(failed)? {
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
    ids: IndexSet<Id<'a>>,
    /// Those that can be GPUs.
    names: Vec<&'a str>,
    /// One id of each form that these have.
    forms: Vec<Id<'a>>,
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
        let ids = names.clone().map(Id::of).collect();
        let names: Vec<&str> = names.filter(|name| kinds.may_be_gpu(name)).collect();
        let mut forms: Vec<Id<'_>> = Vec::new();
        for id in names.iter().map(|name| Id::of(name)) {
            let is_same = |form: &Id<'_>| discriminant(form) == discriminant(&id);
            if !forms.iter().any(is_same) {
                forms.push(id);
            }
        }
        Self {
            ids,
            names,
            forms,
            devices: OnceCell::new(),
            machine,
        }
    }

    /// Returns true if a name that is not in the list denotes devices that are.
    fn denote(&self, name: &str, id: Id<'_>) -> libnvc::Result<bool> {
        if !self.forms.iter().any(|form| form.can_equal(id)) {
            return Ok(false);
        }
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
