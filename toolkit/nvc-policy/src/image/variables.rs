//! Reads the GPUs that variables name: `NVIDIA_VISIBLE_DEVICES`, and Swarm's variables that narrow it.

use super::distinct::distinct;
use super::narrow::{Machine, narrow};
use super::{Devices, Environment, Error, Kinds, Origin, Policy, Source, legacy, mounts};

/// The variable that lists GPUs.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The value of a variable, or of several that count as one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// `void`: another program has added the GPUs, or there shall be none.
    Void,
    /// Nothing is named.
    Empty,
    /// The mounts are the list: names no GPU and hides none.
    Mounts,
    /// The named GPUs.
    Devices(Devices),
}

const ALL: Value = Value::Devices(Devices::All);

/// The variables of a container that say something about GPUs.
#[derive(Debug)]
pub(super) struct Variables {
    visible: Option<Value>,
    swarm: Option<Value>,
    /// The names of Swarm's variables that are set.
    swarm_names: Vec<String>,
    /// True if some of Swarm's variables are `all`, and others are not.
    ignores_all: bool,
    is_legacy: bool,
}

impl Variables {
    pub(super) fn read(environment: &Environment, policy: &Policy) -> Self {
        let set = |name: &&String| environment.get(name).is_some();
        let swarm_names: Vec<String> = policy.swarm_resources.iter().filter(set).cloned().collect();
        let values = swarm_names.iter().filter_map(|name| environment.get(name));
        let values: Vec<Value> = values.map(value).collect();
        Self {
            visible: environment.get(VISIBLE_DEVICES).map(value),
            ignores_all: values.contains(&ALL) && values.iter().any(|value| *value != ALL),
            swarm: union(values),
            swarm_names,
            is_legacy: legacy::is_legacy(environment),
        }
    }

    /// Returns true if one of them is `void`.
    pub(super) fn are_void(&self) -> bool {
        self.values().any(|value| *value == Value::Void)
    }

    /// Returns true if GPUs, or `none`, are named.
    pub(super) fn request_something(&self) -> bool {
        match (&self.visible, &self.swarm) {
            (None, None) => self.is_legacy,
            _ => {
                let is_nothing = |value: &Value| matches!(value, Value::Void | Value::Empty);
                !self.values().any(is_nothing)
                    && self
                        .values()
                        .any(|value| matches!(value, Value::Devices(_)))
            }
        }
    }

    /// Returns true if `NVIDIA_VISIBLE_DEVICES` refers to the mounts.
    pub(super) fn refer_to_mounts(&self) -> bool {
        self.visible == Some(Value::Mounts)
    }

    /// Returns the names of the variables that are set.
    pub(super) fn names(&self) -> Vec<String> {
        let visible = self.visible.as_ref().map(|_| VISIBLE_DEVICES.to_owned());
        let names = self.swarm_names.iter().cloned();
        names.chain(visible).collect()
    }

    /// Returns a warning if the word `all` adds nothing.
    pub(super) fn ignored(&self) -> Option<String> {
        let names = self.swarm_names.join(", ");
        self.ignores_all
            .then(|| format!("{names}: all adds no GPU, because not each of them is all"))
    }

    /// Returns the GPUs that all of them allow; None if they say nothing about GPUs.
    ///
    /// # Errors
    /// A device of a kind that variables may not name, or no GPU that both Swarm's variables and
    /// `NVIDIA_VISIBLE_DEVICES` name.
    pub(super) fn source(
        &self,
        kinds: &Kinds<'_>,
        privileged: bool,
        machine: &dyn Machine,
    ) -> Result<Option<Source>, Error> {
        let origin = Origin::Environment(self.names());
        let (visible, swarm) = match (&self.visible, &self.swarm) {
            (None, None) => {
                return Ok(self.is_legacy.then_some(Source {
                    devices: Some(Devices::All),
                    origin: Origin::LegacyImage,
                }));
            }
            (Some(one), None) | (None, Some(one)) => (one, one),
            (Some(visible), Some(swarm)) => (visible, swarm),
        };
        let devices = match (visible, swarm) {
            (Value::Void | Value::Empty, _) | (_, Value::Void | Value::Empty) => None,
            (Value::Mounts, Value::Mounts) => return Ok(None),
            (Value::Mounts, Value::Devices(one)) | (Value::Devices(one), Value::Mounts) => {
                kinds.check(one, &origin, privileged)?;
                Some(one.clone())
            }
            (Value::Devices(visible), Value::Devices(swarm)) => {
                kinds.check(visible, &origin, privileged)?;
                kinds.check(swarm, &origin, privileged)?;
                Some(self.both(visible, swarm, kinds, machine)?)
            }
        };
        Ok(Some(Source { devices, origin }))
    }

    fn both(
        &self,
        visible: &Devices,
        swarm: &Devices,
        kinds: &Kinds<'_>,
        machine: &dyn Machine,
    ) -> Result<Devices, Error> {
        let names = match (visible, swarm) {
            (one, other) if one == other => return Ok(one.clone()),
            (Devices::None, _) | (_, Devices::None) => return Ok(Devices::None),
            (Devices::All, one) | (one, Devices::All) => return Ok(one.clone()),
            (Devices::Names(names), swarm) => narrow(names, swarm, kinds, machine)?,
        };
        if names.is_empty() {
            return Err(Error::NothingLeft {
                requested: visible.to_string(),
                by: Origin::Environment(vec![VISIBLE_DEVICES.into()]),
                allowed: swarm.to_string(),
                allowed_by: Origin::Environment(self.swarm_names.clone()),
            });
        }
        Ok(Devices::Names(names))
    }

    fn values(&self) -> impl Iterator<Item = &Value> {
        self.visible.iter().chain(&self.swarm)
    }
}

/// Combines the values of Swarm's variables, one for each resource of the service: the container gets what any of them
/// names. Words count for their own variable, or an image could widen the scheduler's choice by setting another one.
fn union(mut values: Vec<Value>) -> Option<Value> {
    values.dedup();
    if values.len() < 2 {
        return values.pop();
    }
    let named = values.iter().filter_map(|value| match value {
        Value::Devices(Devices::Names(names)) => Some(names),
        _ => None,
    });
    let names = distinct(named.flatten().map(String::as_str));
    let none = Value::Devices(Devices::None);
    Some(if !names.is_empty() {
        Value::Devices(Devices::Names(names))
    } else if values.contains(&Value::Void) {
        Value::Void
    } else if values.contains(&none) {
        none
    } else {
        Value::Empty
    })
}

fn value(text: &str) -> Value {
    let names = distinct(text.split(',').map(str::trim));
    let has = |word: &str| names.iter().any(|name| name == word);
    if names.is_empty() {
        return Value::Empty;
    }
    if has("void") {
        return Value::Void;
    }
    if names == [mounts::DIRECTORY] {
        return Value::Mounts;
    }
    let word = names.iter().find(|name| *name == "all" || *name == "none");
    Value::Devices(match word.map(String::as_str) {
        Some("all") => Devices::All,
        Some(_) => Devices::None,
        None => Devices::Names(names),
    })
}

/// Parses a variable's list; None if it requests nothing.
pub(super) fn list(text: &str) -> Option<Devices> {
    match value(text) {
        Value::Devices(devices) => Some(devices),
        Value::Void | Value::Empty | Value::Mounts => None,
    }
}
