//! Reads and sets the calling thread's capabilities without allocating, and keeps processes from being traced.
//!
//! A container in the host's pid namespace sees our processes. The kernel lets its root look into each one of the same
//! user whose permitted capabilities it has itself (ptrace(2), "access mode checking"), so a process that gives up its
//! capabilities becomes *easier* to trace. What it could show is the host's root directory, or the memory of the
//! privileged process that it was copied from. Two things prevent that: a process that is not dumpable is closed to all
//! that lack CAP_SYS_PTRACE, but executing a program makes it dumpable again; and a [shield], a capability that means
//! nothing and that containers are not given, survives the execution.

use std::ptr;

use nix::errno::Errno;

/// A set of capabilities, by their numbers.
pub(crate) type Set = u64;

/// The capability of this number, alone in a set.
pub(crate) const fn only(capability: u32) -> Set {
    1 << capability
}

/// `CAP_DAC_OVERRIDE`.
pub(crate) const DAC_OVERRIDE: u32 = 1;
/// `CAP_SYS_ADMIN`.
pub(crate) const SYS_ADMIN: u32 = 21;

/// Capabilities that are worth nothing to a program in a container's root or in NVML's process, and that no runtime
/// grants unless it grants all: `CAP_WAKE_ALARM` and `CAP_BLOCK_SUSPEND`.
const SHIELDS: [u32; 2] = [35, 36];

/// What a thread may do.
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
    /// Those of the calling thread.
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

    /// Makes them the calling thread's. Ambient ones that are not permitted and inheritable go.
    pub(crate) fn set(self) -> Result<(), Errno> {
        #[allow(clippy::cast_possible_truncation)] // that is the point
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
}

/// Whether a capability is in the calling thread's bounding set.
pub(crate) fn is_bounding(capability: u32) -> bool {
    // SAFETY: this prctl takes no pointers.
    unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) == 1 }
}

/// Whether a program that the calling thread executes as a user other than 0 has a capability.
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

/// Takes one capability out of the bounding set; `EINVAL` past the last that the kernel knows.
pub(crate) fn drop_bounding(capability: u32) -> Result<(), Errno> {
    // SAFETY: this prctl takes no pointers.
    let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    Errno::result(done).map(drop)
}

/// Lets a permitted and inheritable capability survive the execution of a program by a user other than 0.
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

/// The capability that a process keeps, though it is worth nothing, so that containers cannot trace it after it has
/// executed a program. None if the calling thread has none of them, or could not pass it on.
pub(crate) fn shield() -> Option<u32> {
    let Capabilities {
        permitted,
        inheritable,
        ..
    } = Capabilities::read().ok()?;
    // What is neither inheritable nor in the bounding set cannot be made inheritable.
    SHIELDS.into_iter().find(|&capability| {
        permitted & only(capability) != 0
            && (inheritable & only(capability) != 0 || is_bounding(capability))
    })
}

/// Keeps no capability but a shield, which no program that is executed from now on is without.
///
/// The bounding set stays: it grants nothing, and with `no_new_privs` nothing can be gained through it.
pub(crate) fn keep_shield_only() -> Result<(), Errno> {
    let shield = shield();
    let kept = shield.map_or(0, only);
    let capabilities = Capabilities {
        effective: 0,
        permitted: kept,
        inheritable: kept,
    };
    capabilities.set()?;
    // Refused by kernels before 4.3 and where securebits forbid it; then programs are executed without.
    if let Some(capability) = shield {
        let _ = raise_ambient(capability);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Tests run on threads of their own, which is what capabilities belong to.
    #[test]
    fn nothing_but_a_shield_is_kept() {
        let before = Capabilities::read().unwrap();
        let expected = shield().map_or(0, only);
        if before.permitted == (1 << 41) - 1 {
            assert_eq!(expected, only(SHIELDS[0]));
        }
        keep_shield_only().unwrap();
        let kept = Capabilities::read().unwrap();
        assert_eq!((kept.effective, kept.permitted), (0, expected));
        assert_eq!(kept.inheritable, expected);
        // Again, with nothing left to give up.
        keep_shield_only().unwrap();
        assert_eq!(Capabilities::read(), Ok(kept));
        Capabilities::default().set().unwrap();
        assert_eq!(shield(), None);
    }
}
