//! Narrows a list of GPUs to those that another list allows.
//!
//! GPUs are compared as devices: `1`, `nvidia.com/gpu=1` and `GPU-…` can be the same one. Names of the same form are
//! compared as text. Only for others is the [`Machine`] asked, because its answer costs a query of the driver.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use libnvc::request::MOST_NAMES;

use super::qualified::{self, Qualified};
use super::variables::distinct;
use super::{Devices, Error, Kinds};

/// Knows which devices names denote.
pub trait Machine {
    /// Returns the UUIDs of the GPUs or MIG devices of a name, with or without a kind; empty if it is unknown.
    ///
    /// # Errors
    /// The driver does not respond.
    fn uuids(&self, name: &str) -> Result<Vec<String>, String>;

    /// Returns the qualified names of all devices of a kind.
    fn names(&self, kind: &str) -> Vec<String>;
}

/// A device as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id {
    /// The index of a GPU.
    Gpu(u32),
    /// The indices of a GPU and of its MIG device.
    Mig(u32, u32),
    /// In lower case.
    Uuid(String),
    /// Only the machine knows.
    Unknown,
}

impl Id {
    fn of(name: &str, kinds: &Kinds<'_>) -> Self {
        let (device, has_indices) = match qualified::parse(name) {
            Some(name) => (name.device, kinds.has_indices(name.kind)),
            None => (name, true),
        };
        let start = device.get(..4).unwrap_or_default();
        if start.eq_ignore_ascii_case("GPU-") || start.eq_ignore_ascii_case("MIG-") {
            return Self::Uuid(device.to_ascii_lowercase());
        }
        if !has_indices {
            return Self::Unknown;
        }
        // `gpu0` and `mig0:1` are names of specifications only.
        let plain = |prefix| match device.len() == name.len() {
            true => device,
            false => device.strip_prefix(prefix).unwrap_or(device),
        };
        match device.split_once(':') {
            None => number(plain("gpu")).map(Self::Gpu),
            Some(_) => plain("mig").split_once(':').and_then(|(gpu, mig)| {
                let (gpu, mig) = number(gpu).zip(number(mig))?;
                Some(Self::Mig(gpu, mig))
            }),
        }
        .unwrap_or(Self::Unknown)
    }

    /// Returns true if different ids of these forms can denote the same device.
    fn can_equal(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => true,
            (Self::Uuid(_), other) | (other, Self::Uuid(_)) => !matches!(other, Self::Uuid(_)),
            (Self::Gpu(_) | Self::Mig(..), Self::Gpu(_) | Self::Mig(..)) => false,
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Returns those of `names` that `by` allows. A name of all GPUs becomes one name for each allowed GPU.
///
/// # Errors
/// Names of different forms cannot be compared because the driver does not respond; or too many are left.
pub(super) fn narrow(
    names: &[String],
    by: &Devices,
    kinds: &Kinds<'_>,
    machine: &dyn Machine,
) -> Result<Vec<String>, Error> {
    let allowed = match by {
        Devices::All => return Ok(names.to_vec()),
        Devices::None => return Ok(Vec::new()),
        Devices::Names(allowed) => Allowed::new(allowed, kinds, machine),
    };
    if allowed.names.iter().any(|name| is_all(name)) {
        return Ok(names.to_vec());
    }
    let failed = |cause: String| Error::Compare {
        names: names.join(","),
        with: by.to_string(),
        cause,
    };
    let mut left = Vec::new();
    for name in names {
        if allowed.texts.contains(name.as_str()) {
            left.push(name.clone());
        } else if !kinds.may_be_gpu(name) {
            // Only the same name is the same device.
        } else if is_all(name) {
            left.extend(allowed.as_kind_of(name).map_err(failed)?);
        } else if allowed.contain(name).map_err(failed)? {
            left.push(name.clone());
        }
        // Several names of all GPUs multiply.
        if left.len() > MOST_NAMES {
            return Err(Error::TooManyNames {
                source: names.join(","),
                number: left.len(),
            });
        }
    }
    Ok(distinct(left.iter().map(String::as_str)))
}

/// Returns true for a name of all GPUs.
fn is_all(name: &str) -> bool {
    match qualified::parse(name) {
        Some(name) => name.device == "all",
        None => name == "all",
    }
}

/// A list that allows GPUs, indexed: images choose how long it is.
struct Allowed<'a> {
    texts: HashSet<&'a str>,
    /// Those that can be GPUs.
    names: Vec<&'a str>,
    ids: HashSet<Id>,
    /// One id of each form.
    forms: HashMap<std::mem::Discriminant<Id>, Id>,
    uuids: OnceCell<HashSet<String>>,
    kinds: &'a Kinds<'a>,
    machine: &'a dyn Machine,
}

impl<'a> Allowed<'a> {
    fn new(names: &'a [String], kinds: &'a Kinds<'a>, machine: &'a dyn Machine) -> Self {
        let texts: HashSet<&str> = names.iter().map(String::as_str).collect();
        let names = names.iter().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| kinds.may_be_gpu(name)).collect();
        let ids: HashSet<Id> = names.iter().map(|name| Id::of(name, kinds)).collect();
        let forms = ids
            .iter()
            .map(|id| (std::mem::discriminant(id), id.clone()));
        Self {
            forms: forms.collect(),
            texts,
            names,
            ids,
            uuids: OnceCell::new(),
            kinds,
            machine,
        }
    }

    fn contain(&self, name: &str) -> Result<bool, String> {
        let id = Id::of(name, self.kinds);
        if id != Id::Unknown && self.ids.contains(&id) {
            return Ok(true);
        }
        if !self.forms.values().any(|form| form.can_equal(&id)) {
            return Ok(false);
        }
        let uuids = self.machine.uuids(name)?;
        let allowed = self.uuids()?;
        Ok(!uuids.is_empty() && uuids.iter().all(|uuid| allowed.contains(uuid)))
    }

    fn uuids(&self) -> Result<&HashSet<String>, String> {
        if let Some(known) = self.uuids.get() {
            return Ok(known);
        }
        let mut all = HashSet::new();
        for name in &self.names {
            all.extend(self.machine.uuids(name)?);
        }
        Ok(self.uuids.get_or_init(|| all))
    }

    /// Returns the allowed GPUs as devices of the kind of `all`.
    fn as_kind_of(&self, all: &str) -> Result<Vec<String>, String> {
        let Some(Qualified { kind, .. }) = qualified::parse(all) else {
            return Ok(self.names.iter().map(ToString::to_string).collect());
        };
        let mut there = self.machine.names(kind);
        there.retain(|name| !is_all(name));
        let by_id: HashMap<Id, &String> = there
            .iter()
            .map(|name| (Id::of(name, self.kinds), name))
            .collect();
        let by_uuid = OnceCell::new();
        let mut names = Vec::new();
        for name in &self.names {
            let id = Id::of(name, self.kinds);
            let mut found: Vec<String> = match by_id.get(&id) {
                Some(known) if id != Id::Unknown => vec![(*known).clone()],
                _ if there.is_empty() => Vec::new(),
                _ => {
                    let index = match by_uuid.get() {
                        Some(index) => index,
                        None => by_uuid.get_or_init({
                            let made = self.by_uuid(&there)?;
                            || made
                        }),
                    };
                    let uuids = self.machine.uuids(name)?;
                    let found = uuids.iter().filter_map(|uuid| index.get(uuid));
                    found.map(|name| (*name).clone()).collect()
                }
            };
            if found.is_empty() {
                // The registry will report that there is no such device.
                let device = qualified::parse(name).map_or(*name, |name| name.device);
                found.push(format!("{kind}={device}"));
            }
            names.extend(found);
        }
        Ok(names)
    }

    /// Indexes the devices of a specification that are one GPU or MIG device.
    fn by_uuid<'n>(&self, names: &'n [String]) -> Result<HashMap<String, &'n String>, String> {
        let mut index = HashMap::new();
        for name in names {
            let mut uuids = self.machine.uuids(name)?;
            if let (1, Some(uuid)) = (uuids.len(), uuids.pop()) {
                index.entry(uuid).or_insert(name);
            }
        }
        Ok(index)
    }
}
