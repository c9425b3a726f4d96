//! Reads and sets the calling thread's capabilities without allocating, and keeps processes from being traced.
//!
//! A container in the host's pid namespace sees our processes. The kernel lets the container's root trace any process
//! of the same user whose permitted capabilities are a subset of its own (ptrace(2), "access mode checking"), so a
//! process that drops its capabilities becomes *easier* to trace. A tracer would gain the host's root directory, or the
//! memory of the privileged process that forked it. Two things prevent that. A process that is not dumpable cannot be
//! traced without CAP_SYS_PTRACE, but execve(2) makes it dumpable again. A [shield], a harmless capability that
//! containers are not given, survives execve(2).

use std::ptr;

use nix::errno::Errno;

/// A set of capabilities, one bit per number.
pub(crate) type Set = u64;

/// Returns the set that holds only this capability.
pub(crate) const fn only(capability: u32) -> Set {
    1 << capability
}

/// `CAP_CHOWN`.
pub(crate) const CHOWN: u32 = 0;
/// `CAP_DAC_OVERRIDE`.
pub(crate) const DAC_OVERRIDE: u32 = 1;
/// `CAP_FOWNER`.
pub(crate) const FOWNER: u32 = 3;
/// `CAP_SYS_MODULE`.
pub(crate) const SYS_MODULE: u32 = 16;
/// `CAP_SYS_ADMIN`.
pub(crate) const SYS_ADMIN: u32 = 21;

/// Capabilities that are useless to a program in a container's root or in NVML's process, and that no runtime grants
/// unless it grants all: `CAP_WAKE_ALARM` and `CAP_BLOCK_SUSPEND`.
const SHIELDS: [u32; 2] = [35, 36];

/// The capability sets of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) effective: Set,
    pub(crate) permitted: Set,
    pub(crate) inheritable: Set,
}

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// One of the two words of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Words {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const OF_THIS_THREAD: Header = Header {
    version: 0x2008_0522, // _LINUX_CAPABILITY_VERSION_3: two words a set
    pid: 0,
};

impl Capabilities {
    /// Reads the calling thread's sets.
    pub(crate) fn read() -> Result<Self, Errno> {
        let mut header = OF_THIS_THREAD;
        let mut words = [Words::default(); 2];
        // SAFETY: capget(2) reads and may write a header, and writes two words a set for this version; both are ours.
        let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
        Errno::result(done)?;
        let [low, high] = words;
        let join = |low: u32, high: u32| Set::from(low) | Set::from(high) << 32;
        Ok(Self {
            effective: join(low.effective, high.effective),
            permitted: join(low.permitted, high.permitted),
            inheritable: join(low.inheritable, high.inheritable),
        })
    }

    /// Sets the calling thread's sets. The kernel drops ambient capabilities that are not both permitted and
    /// inheritable.
    pub(crate) fn set(self) -> Result<(), Errno> {
        #[allow(clippy::cast_possible_truncation)] // each word takes one half
        let words = [0, 32].map(|shift| Words {
            effective: (self.effective >> shift) as u32,
            permitted: (self.permitted >> shift) as u32,
            inheritable: (self.inheritable >> shift) as u32,
        });
        // SAFETY: capset(2) reads a header and, for this version, two words a set; both outlive the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_capset,
                ptr::from_ref(&OF_THIS_THREAD),
                words.as_ptr(),
            )
        };
        Errno::result(done).map(drop)
    }

    /// Returns true if a program that the calling thread executes as root gets the capability.
    pub(crate) fn pass_on(self, capability: u32) -> bool {
        self.inheritable & only(capability) != 0 || is_bounding(capability)
    }
}

/// Returns true if the capability is in the calling thread's bounding set.
fn is_bounding(capability: u32) -> bool {
    // SAFETY: this prctl takes no pointers.
    unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) == 1 }
}

/// Returns true if the capability is in the calling thread's ambient set, which a non-root program keeps across
/// execve(2).
pub(crate) fn is_ambient(capability: u32) -> bool {
    // SAFETY: this prctl takes no pointers.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_IS_SET,
            capability,
            0,
            0,
        ) == 1
    }
}

/// Drops a capability from the bounding set; `EINVAL` past the last one the kernel knows.
pub(crate) fn drop_bounding(capability: u32) -> Result<(), Errno> {
    // SAFETY: this prctl takes no pointers.
    let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    Errno::result(done).map(drop)
}

/// Drops all but these from the bounding set, if the calling thread has `CAP_SETPCAP`.
pub(crate) fn keep_bounding(kept: Set) {
    for capability in (0..Set::BITS).filter(|capability| kept & only(*capability) == 0) {
        // EINVAL: past the last capability.
        if drop_bounding(capability).is_err() {
            break;
        }
    }
}

/// Makes a permitted and inheritable capability ambient, so that it survives execve(2) by a non-root user.
pub(crate) fn raise_ambient(capability: u32) -> Result<(), Errno> {
    // SAFETY: this prctl takes no pointers.
    let done = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE,
            capability,
            0,
            0,
        )
    };
    Errno::result(done).map(drop)
}

/// Returns the harmless capability to keep, so that containers cannot trace the process after execve(2). None if the
/// calling thread has neither, or could not pass one on.
pub(crate) fn shield() -> Option<u32> {
    let own = Capabilities::read().ok()?;
    // A capability that is neither inheritable nor in the bounding set cannot be made inheritable.
    SHIELDS
        .into_iter()
        .find(|&capability| own.permitted & only(capability) != 0 && own.pass_on(capability))
}

/// Drops all capabilities but a shield; returns true if every program executed from now on inherits it.
///
/// The bounding set stays: it grants nothing, and with `no_new_privs` nothing can be gained through it.
pub(crate) fn keep_shield_only() -> Result<bool, Errno> {
    let shield = shield();
    let kept = shield.map_or(0, only);
    let capabilities = Capabilities {
        effective: 0,
        permitted: kept,
        inheritable: kept,
    };
    capabilities.set()?;
    // Fails before Linux 4.3 and if securebits forbid it.
    Ok(shield.is_some_and(|capability| raise_ambient(capability).is_ok()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Capabilities are per thread, and each test runs on its own thread.
    #[test]
    fn only_a_shield_is_kept() {
        let before = Capabilities::read().unwrap();
        let expected = shield().map_or(0, only);
        if before.permitted == (1 << 41) - 1 {
            assert_eq!(expected, only(SHIELDS[0]));
        }
        assert_eq!(keep_shield_only(), Ok(expected != 0));
        let kept = Capabilities::read().unwrap();
        assert_eq!((kept.effective, kept.permitted), (0, expected));
        assert_eq!(kept.inheritable, expected);
        // A second call has nothing left to drop.
        keep_shield_only().unwrap();
        assert_eq!(Capabilities::read(), Ok(kept));
        Capabilities::default().set().unwrap();
        assert_eq!(shield(), None);
    }
}
