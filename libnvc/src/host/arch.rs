//! Distinguishes native from 32-bit libraries, by loader cache flags and ELF headers.
//!
//! A driver installation has up to two sets of libraries: the machine's own and those of its 32-bit predecessor. The
//! numbers that mark them depend on the target architecture of this program.

use serde::Serialize;

use crate::elf::Identity;

/// One of the two sets of libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abi {
    /// The machine's own ABI.
    Native,
    /// The ABI of the machine's 32-bit predecessor.
    Compat32,
}

/// The marks of one set of libraries.
struct Marks {
    /// Architecture bits of a loader cache entry (glibc's `FLAG_*` in ldconfig.h).
    cache: i32,
    /// `EI_CLASS` and `e_machine` of the ELF header.
    elf: (u8, u16),
    /// Debian's name for the set, the last part of its library directories.
    triplet: &'static str,
}

/// Set for entries of libc 6 ELF libraries; no other kind is in use today.
const CACHE_ELF: i32 = 0x0001;
const CACHE_ARCHITECTURE: i32 = 0xff00;

#[cfg(target_arch = "x86_64")]
const NATIVE: Option<Marks> = marks(0x0300, 2, 62, "x86_64-linux-gnu");
#[cfg(target_arch = "x86_64")]
const COMPAT32: Option<Marks> = marks(0x0000, 1, 3, "i386-linux-gnu");

#[cfg(target_arch = "aarch64")]
const NATIVE: Option<Marks> = marks(0x0a00, 2, 183, "aarch64-linux-gnu");
#[cfg(target_arch = "aarch64")]
const COMPAT32: Option<Marks> = marks(0x0900, 1, 40, "arm-linux-gnueabihf");

#[cfg(target_arch = "powerpc64")]
const NATIVE: Option<Marks> = marks(0x0500, 2, 21, "powerpc64le-linux-gnu");
#[cfg(target_arch = "powerpc64")]
const COMPAT32: Option<Marks> = None;

const fn marks(cache: i32, class: u8, machine: u16, triplet: &'static str) -> Option<Marks> {
    Some(Marks {
        cache,
        elf: (class, machine),
        triplet,
    })
}

impl Abi {
    /// Both sets, the native one first.
    pub(super) const ALL: [Self; 2] = [Self::Native, Self::Compat32];

    /// Returns the set that a loader cache entry with these flags belongs to.
    pub fn of_cache_entry(flags: i32) -> Option<Self> {
        let wanted = |marks: &Marks| marks.cache == flags & CACHE_ARCHITECTURE;
        (flags & CACHE_ELF != 0).then(|| Self::find(wanted))?
    }

    /// Returns the set that a file of this identity belongs to.
    pub(super) fn of_elf(identity: Identity) -> Option<Self> {
        Self::find(|marks| marks.elf == (identity.class, identity.machine))
    }

    /// Returns Debian's triplet for the set.
    pub(super) fn triplet(self) -> Option<&'static str> {
        self.marks().map(|marks| marks.triplet)
    }

    fn marks(self) -> Option<&'static Marks> {
        static MARKS: [Option<Marks>; 2] = [NATIVE, COMPAT32];
        MARKS[self as usize].as_ref()
    }

    fn find(wanted: impl Fn(&Marks) -> bool) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|abi| abi.marks().is_some_and(&wanted))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn cache_flags() {
        for (flags, abi) in [
            (0x0303, Some(Abi::Native)),
            (0x0301, Some(Abi::Native)),
            (0x0003, Some(Abi::Compat32)),
            (0x0803, None), // x32
            (0x0a03, None), // aarch64
            (0x0302, None), // not ELF
            (-1, None),
        ] {
            assert_eq!(Abi::of_cache_entry(flags), abi, "{flags:#x}");
        }
    }

    #[test]
    fn elf_headers() {
        let of = |class, machine| {
            Abi::of_elf(Identity {
                class,
                machine,
                flags: 0,
            })
        };
        assert_eq!(of(2, 62), Some(Abi::Native));
        assert_eq!(of(1, 3), Some(Abi::Compat32));
        assert_eq!(of(1, 62), None); // x32
    }
}
