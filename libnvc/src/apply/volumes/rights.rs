//! Runs actions with the rights that a mount permits.

use caps::{CapSet, Capability, CapsHashSet};
use nix::errno::Errno;
use nix::unistd::{Uid, geteuid, setfsuid};

/// The rights for creating files on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum Rights {
    /// The caller's.
    Full,
    /// Those of the container's owner without any capability.
    AsOwner,
    /// No file may be created.
    Nothing,
}

impl Rights {
    /// Runs an action with these rights.
    pub(in crate::apply) fn act<T>(
        self,
        action: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self {
            Self::Full => action(),
            Self::AsOwner => {
                let _lowered = LoweredCapabilities::now()?;
                action()
            }
            Self::Nothing => Err(Errno::EPERM),
        }
    }

    /// Opens a file whose text gets into a new one: with no more rights than the new file's owner has.
    pub(in crate::apply) fn open_old<T>(
        self,
        action: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        // An invalid user changes nothing.
        let creates_as = setfsuid(Uid::from_raw(u32::MAX));
        match self {
            Self::Full if creates_as == geteuid() => action(),
            Self::Full | Self::AsOwner => Self::AsOwner.act(action),
            // There will be no new file.
            Self::Nothing => action(),
        }
    }
}

/// Capabilities that override owners and modes of files.
const OVER_FILES: [Capability; 8] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_LINUX_IMMUTABLE,
    Capability::CAP_MKNOD,
    Capability::CAP_SYS_RESOURCE,
];

/// While this guard exists, this thread's file capabilities are not effective; other threads are not affected.
struct LoweredCapabilities(CapsHashSet);

impl LoweredCapabilities {
    fn now() -> Result<Self, Errno> {
        let failed = |_| Errno::EPERM;
        let before = caps::read(None, CapSet::Effective).map_err(failed)?;
        let lowered = before
            .iter()
            .filter(|capability| !OVER_FILES.contains(capability))
            .copied()
            .collect();
        caps::set(None, CapSet::Effective, &lowered).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for LoweredCapabilities {
    fn drop(&mut self) {
        // They are still permitted, so this cannot fail.
        if let Err(error) = caps::set(None, CapSet::Effective, &self.0) {
            log::warn!("capabilities stay lowered: {error}");
        }
    }
}
