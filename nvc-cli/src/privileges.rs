//! Gives up the Linux capabilities that the program does not need, before it does anything else.
//!
//! Capabilities belong to threads: all of this happens before the first one is started. Upstream demands thirteen
//! capabilities and stops if one is missing; here, only what `configure` cannot do without is demanded. The bounding set
//! grants nothing and stays: the library takes from it what each program that it executes shall not have.

use caps::{CapSet, Capability, CapsHashSet};
use libnvc::{Error, Result};
use nix::errno::Errno;

/// What is kept, where it is there.
const KEPT: [Capability; 15] = [
    Capability::CAP_BLOCK_SUSPEND, // with WAKE_ALARM: see libnvc's shield against tracers
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_KILL,
    Capability::CAP_MKNOD,
    Capability::CAP_NET_ADMIN, // with SYS_ADMIN: device programs of cgroups
    Capability::CAP_SETGID,
    Capability::CAP_SETPCAP, // bounding sets of what is executed
    Capability::CAP_SETUID,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_WAKE_ALARM,
];

/// Without these nobody enters another mount namespace.
const NEEDED: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_SYS_CHROOT];

/// The capabilities this program has.
#[derive(Debug)]
pub(crate) struct Privileges {
    permitted: CapsHashSet,
}

impl Privileges {
    pub(crate) fn read() -> Result<Self> {
        let permitted = caps::read(None, CapSet::Permitted).map_err(|_| refused())?;
        Ok(Self { permitted })
    }

    /// Stops unless there is what `configure` needs.
    pub(crate) fn demand_needed(&self) -> Result<()> {
        let missing: Vec<String> = NEEDED
            .iter()
            .filter(|cap| !self.permitted.contains(cap))
            .map(ToString::to_string)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(refused().hint(format!(
            "run it as root, with {}; --dry-run needs less",
            missing.join(" and ")
        )))
    }

    /// Gives up what is not needed.
    pub(crate) fn trim(&mut self) -> Result<()> {
        self.permitted.retain(|cap| KEPT.contains(cap));
        // Effective first: it must not exceed the permitted set.
        set(CapSet::Effective, &self.permitted)?;
        set(CapSet::Inheritable, &CapsHashSet::new())?;
        set(CapSet::Permitted, &self.permitted)
    }
}

fn set(set: CapSet, value: &CapsHashSet) -> Result<()> {
    caps::set(None, set, value).map_err(|_| refused())
}

/// The kernel gives no other reason when it refuses a change of capabilities.
fn refused() -> Error {
    Error::system("capability change failed", Errno::EPERM)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Tests run on threads of their own, which is what capabilities belong to.
    #[test]
    fn trims_this_thread() {
        let mut privileges = Privileges::read().unwrap();
        if privileges.permitted.is_empty() {
            // Somebody who has nothing has nothing to give up, and still must not fail.
            privileges.trim().unwrap();
            assert!(privileges.demand_needed().is_err());
            return;
        }
        privileges.demand_needed().unwrap();
        let mut kept = privileges.permitted.clone();
        kept.retain(|cap| KEPT.contains(cap));
        privileges.trim().unwrap();
        let read = |set| caps::read(None, set).unwrap();
        assert_eq!(read(CapSet::Permitted), kept);
        assert_eq!(read(CapSet::Effective), kept);
        assert!(read(CapSet::Inheritable).is_empty());
        // Again, without anything left to drop.
        privileges.trim().unwrap();

        caps::set(None, CapSet::Effective, &CapsHashSet::new()).unwrap();
        let two = [Capability::CAP_SYS_ADMIN, Capability::CAP_KILL];
        caps::set(None, CapSet::Permitted, &two.into_iter().collect()).unwrap();
        let mut privileges = Privileges::read().unwrap();
        privileges.trim().unwrap();
        let error = privileges.demand_needed().unwrap_err();
        assert_eq!(
            error.message(),
            "capability change failed: operation not permitted"
        );
        assert!(error.advice().unwrap().contains("CAP_SYS_CHROOT"));
    }
}
