//! Runs actions with the rights that a mount permits.

use nix::errno::Errno;
use nix::unistd::{Uid, geteuid, setfsuid};

use crate::sys::capabilities::{CHOWN, Capabilities, DAC_OVERRIDE, FOWNER, Set, only};

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
const OVER_FILES: Set = only(CHOWN)
    | only(DAC_OVERRIDE)
    | only(2) // CAP_DAC_READ_SEARCH
    | only(FOWNER)
    | only(4) // CAP_FSETID
    | only(9) // CAP_LINUX_IMMUTABLE
    | only(24) // CAP_SYS_RESOURCE
    | only(27); // CAP_MKNOD

/// While this guard exists, this thread's file capabilities are not effective; other threads are not affected.
struct LoweredCapabilities(Capabilities);

impl LoweredCapabilities {
    fn now() -> Result<Self, Errno> {
        let before = Capabilities::read()?;
        let mut lowered = before;
        lowered.effective &= !OVER_FILES;
        lowered.set()?;
        Ok(Self(before))
    }
}

impl Drop for LoweredCapabilities {
    fn drop(&mut self) {
        // They are still permitted, so this cannot fail.
        if let Err(errno) = self.0.set() {
            log::warn!("capabilities stay lowered: {errno}");
        }
    }
}
