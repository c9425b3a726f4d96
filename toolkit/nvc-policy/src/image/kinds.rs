//! Determines which kinds of CDI devices variables may name, and which ones can be GPUs.

use nvc_cdi::names::{self, QualifiedName};

use super::{Devices, Error, Origin};

/// Classes of NVIDIA's that are not GPUs.
const NOT_GPUS: [&str; 5] = ["gdrcopy", "gds", IMEX_CHANNEL, "mofed", "nvswitch"];
const IMEX_CHANNEL: &str = "imex-channel";

/// The vendor of containers that manage the driver.
const MANAGEMENT: &str = "management.nvidia.com";

/// Returns true if a CDI name is that of an IMEX channel.
pub(super) fn is_imex_channel(name: &str) -> bool {
    names::parse(name).is_some_and(|name| name.class == IMEX_CHANNEL)
}

/// Returns true if a kind's devices manage the driver.
pub(super) fn is_for_managers(kind: &str) -> bool {
    let vendor = kind.split_once('/').map_or(kind, |(vendor, _)| vendor);
    vendor == MANAGEMENT
}

/// The kinds that the configuration names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kinds<'a> {
    /// That of names without a kind.
    pub(super) default: &'a str,
    /// Those that variables may name in addition to NVIDIA's.
    pub(super) accepted: &'a [String],
}

impl Kinds<'_> {
    /// Checks the names in variables: an image chooses them, and a specification of another vendor may mount anything.
    ///
    /// # Errors
    /// A name of another vendor's kind, or a device for managers without the capability to use it.
    pub(super) fn check(
        &self,
        devices: &Devices,
        origin: &Origin,
        privileged: bool,
    ) -> Result<(), Error> {
        let Devices::Names(names) = devices else {
            return Ok(());
        };
        let may_be_named = |name: &str| {
            self.may_manage(name, privileged) && (self.are_nvidias(name) || self.accepts(name))
        };
        match names.iter().find(|name| !may_be_named(name)) {
            Some(name) => Err(Error::kind(name, origin.clone())),
            None => Ok(()),
        }
    }

    /// Returns false for a device for managers, if the container is not a manager.
    pub(super) fn may_manage(&self, name: &str, privileged: bool) -> bool {
        let is_other = names::parse(name).is_none_or(|name| name.vendor != MANAGEMENT);
        is_other || privileged || self.accepts(name)
    }

    /// Returns true if the configuration names the kind of a device.
    fn accepts(&self, name: &str) -> bool {
        names::parse(name).is_some_and(|QualifiedName { kind, .. }| {
            kind == self.default || self.accepted.iter().any(|other| other == kind)
        })
    }

    /// Returns true for a name that is NVIDIA's, or has no kind.
    pub(super) fn are_nvidias(&self, name: &str) -> bool {
        names::parse(name)
            .is_none_or(|name| name.kind == self.default || names::is_nvidias(name.vendor))
    }

    /// Returns true if a name can be that of a GPU.
    pub(super) fn may_be_gpu(&self, name: &str) -> bool {
        let is_other = names::parse(name).is_some_and(|name| NOT_GPUS.contains(&name.class));
        self.are_nvidias(name) && !is_other
    }
}
