//! Drops the Linux capabilities that a program around `configure` does not need, before it does anything else.
//!
//! For programs: capabilities are per thread, so this must happen before the first thread is started. Upstream requires
//! thirteen capabilities and fails if one is missing; here only those are required without which `configure` cannot
//! work. The bounding set grants nothing and stays: the library limits it for each program that it executes.

use caps::{CapSet, Capability, CapsHashSet};
use libnvc::{Error, Result};
use nix::errno::Errno;

/// Capabilities to keep, if present.
const KEPT: [Capability; 15] = [
    Capability::CAP_BLOCK_SUSPEND, // with WAKE_ALARM: the shield against tracers
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_KILL,
    Capability::CAP_MKNOD,
    Capability::CAP_NET_ADMIN, // with SYS_ADMIN: cgroup device programs
    Capability::CAP_SETGID,
    Capability::CAP_SETPCAP, // bounding sets of executed programs
    Capability::CAP_SETUID,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_WAKE_ALARM,
];

/// Without these, another mount namespace cannot be entered.
const NEEDED: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_SYS_CHROOT];

/// The program's permitted capabilities.
#[derive(Debug)]
pub struct Privileges {
    permitted: CapsHashSet,
}

impl Privileges {
    /// Reads the calling thread's capabilities.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn read() -> Result<Self> {
        let permitted = caps::read(None, CapSet::Permitted).map_err(|_| refused())?;
        Ok(Self { permitted })
    }

    /// Fails unless the capabilities that `configure` needs are present.
    ///
    /// # Errors
    /// One is missing.
    pub fn demand_needed(&self) -> Result<()> {
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

    /// Drops unneeded capabilities.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn trim(&mut self) -> Result<()> {
        self.permitted.retain(|cap| KEPT.contains(cap));
        // Effective first: it must be a subset of the permitted set.
        set(CapSet::Effective, &self.permitted)?;
        set(CapSet::Inheritable, &CapsHashSet::new())?;
        set(CapSet::Permitted, &self.permitted)
    }
}

fn set(set: CapSet, value: &CapsHashSet) -> Result<()> {
    caps::set(None, set, value).map_err(|_| refused())
}

/// Returns the error for a refused change of capabilities; the kernel has no other reason to refuse one.
fn refused() -> Error {
    Error::system("capability change failed", Errno::EPERM)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Capabilities are per thread, and each test runs on its own thread.
    #[test]
    fn trims_this_thread() {
        let mut privileges = Privileges::read().unwrap();
        if privileges.permitted.is_empty() {
            // Dropping must succeed without any capabilities too.
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
        // A second call has nothing left to drop.
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
