//! Drops the Linux capabilities that a program does not need, before it does anything else.
//!
//! For programs: capabilities are per thread, so this must happen before the first thread is started. For `configure`
//! upstream requires thirteen capabilities and fails if one is missing; here only those are required without which it
//! cannot work. The bounding set grants nothing and stays: the library limits it for each program that it executes.

pub use caps::Capability;
use caps::{CapSet, CapsHashSet};
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

/// Fails unless the calling thread has the capabilities that `configure` needs.
///
/// # Errors
/// One is missing.
pub fn demand_needed() -> Result<()> {
    let permitted = permitted()?;
    let missing: Vec<String> = NEEDED
        .iter()
        .filter(|cap| !permitted.contains(cap))
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

/// Drops the capabilities that `configure` does not need.
///
/// # Errors
/// The kernel refuses.
pub fn trim() -> Result<()> {
    keep_only(&KEPT)
}

/// Drops all capabilities of the calling thread but these, as far as it has them. Programs that it executes inherit none.
///
/// # Errors
/// The kernel refuses.
pub fn keep_only(kept: &[Capability]) -> Result<()> {
    let mut rest = permitted()?;
    rest.retain(|cap| kept.contains(cap));
    // Effective first: it must be a subset of the permitted set. The kernel drops ambient ones with inheritable ones.
    set(CapSet::Effective, &rest)?;
    set(CapSet::Inheritable, &CapsHashSet::new())?;
    set(CapSet::Permitted, &rest)
}

fn permitted() -> Result<CapsHashSet> {
    caps::read(None, CapSet::Permitted).map_err(|_| refused())
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
        let mut kept = permitted().unwrap();
        if kept.is_empty() {
            // Dropping must succeed without any capabilities too.
            trim().unwrap();
            assert!(demand_needed().is_err());
            return;
        }
        demand_needed().unwrap();
        kept.retain(|cap| KEPT.contains(cap));
        trim().unwrap();
        let read = |set| caps::read(None, set).unwrap();
        assert_eq!(read(CapSet::Permitted), kept);
        assert_eq!(read(CapSet::Effective), kept);
        assert!(read(CapSet::Inheritable).is_empty());
        // A second call has nothing left to drop.
        trim().unwrap();

        keep_only(&[Capability::CAP_SYS_ADMIN, Capability::CAP_KILL]).unwrap();
        trim().unwrap();
        let error = demand_needed().unwrap_err();
        assert_eq!(
            error.message(),
            "capability change failed: operation not permitted"
        );
        assert!(error.advice().unwrap().contains("CAP_SYS_CHROOT"));
    }
}
