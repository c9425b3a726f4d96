//! Classifies files as ldconfig does: is it a library, and of which kind.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::directory::open_child;
use crate::elf::{self, ElfError, Identity};
use crate::inroot::{self, Image};

/// Cache flags of an ELF library: for an unknown C library, and for glibc.
const ELF: i32 = 0x0001;
const ELF_LIBC6: i32 = 0x0003;

/// Libraries whose presence among the needed ones identifies glibc.
pub(crate) const C_LIBRARY: [&str; 2] = ["libc.so.6", "libm.so.6"];

/// What ldconfig reads of a library.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Kind and architecture, as in the cache.
    pub(crate) flags: i32,
    /// Its SONAME, or its name if it has none.
    pub(crate) soname: Vec<u8>,
    /// True if the name is a link's.
    pub(crate) is_link: bool,
    pub(crate) identity: inroot::Identity,
}

/// Reads a library of the directory with this path; None for a file that ldconfig does not list.
///
/// Development links (`libz.so`) count as the library that they lead to.
pub(crate) fn read(
    image: Image<'_>,
    path: &Path,
    directory: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<Option<Facts>, ElfError> {
    let io = |errno: Errno| std::io::Error::from(errno);
    // By reference first and then reopened, because opening a device can have side effects.
    let mut found = open_child(directory, name).map_err(io)?;
    let mut stat = inroot::stat(found.as_fd()).map_err(io)?;
    let is_link = inroot::kind(&stat) == SFlag::S_IFLNK;
    if is_link {
        found = image.root.resolve(&path.join(name)).map_err(io)?;
        stat = inroot::stat(found.as_fd()).map_err(io)?;
    }
    let file = image.open_known(found.as_fd(), &stat).map_err(io)?;
    let library = elf::Library::open(file)?;
    if !library.is_shared() {
        return Ok(None);
    }
    let needs_libc = || library.needs(&C_LIBRARY);
    let Some(flags) = flags(library.identity(), needs_libc)? else {
        return Ok(None);
    };
    let soname = library.soname()?;
    Ok(Some(Facts {
        flags,
        soname: soname.unwrap_or_else(|| name.as_bytes().to_vec()),
        is_link,
        identity: inroot::identity(&stat),
    }))
}

/// Returns true if a file of this name can be a library.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let begins = name.starts_with(b"lib") || name.starts_with(b"ld-");
    begins && name.windows(3).any(|part| part == b".so") && !is_temporary(name)
}

/// Returns true for the temporary names of prelink(8).
fn is_temporary(name: &[u8]) -> bool {
    const MARK: &[u8] = b".#prelink#";
    let before_random = name.len().checked_sub(".XXXXXX".len());
    let stem = before_random.and_then(|length| name.get(..length));
    name.ends_with(MARK) || stem.is_some_and(|stem| stem.ends_with(MARK))
}

/// Returns the cache flags of a library, or None if it is for another machine. `needs_libc` returns whether it needs
/// one of [`C_LIBRARY`]; it is only called for machines where that matters.
pub(crate) fn flags<E>(
    identity: Identity,
    needs_libc: impl FnOnce() -> Result<bool, E>,
) -> Result<Option<i32>, E> {
    let Identity {
        class,
        machine,
        flags,
    } = identity;
    let unmarked = |needs| if needs { ELF_LIBC6 } else { ELF };
    Ok(match (std::env::consts::ARCH, class, machine) {
        ("x86_64", 2, 62) => Some(0x0300 | ELF_LIBC6),
        ("x86_64", 1, 62) => Some(0x0800 | ELF_LIBC6), // x32
        ("x86_64", 1, 3) => Some(unmarked(needs_libc()?)),
        ("aarch64", 2, 183) => Some(0x0a00 | ELF_LIBC6),
        ("aarch64", 1, 40) => match flags & 0xff00_0600 {
            0x0500_0400 => Some(0x0900 | ELF_LIBC6), // hard float
            0x0500_0200 => Some(0x0b00 | ELF_LIBC6),
            _ => Some(unmarked(needs_libc()?)),
        },
        ("powerpc64", 2, 21) => Some(0x0500 | ELF_LIBC6),
        _ => None,
    })
}

/// Returns true if a link of this name to a library with this SONAME is no library of its own: its name is the SONAME,
/// or it is the development link. ldconfig treats any other link like a copy of the library.
pub(crate) fn is_proper_link(name: &[u8], soname: &[u8]) -> bool {
    name == soname || name.ends_with(b".so") && soname.starts_with(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries() {
        for (name, expected) in [
            ("libcuda.so.1", true),
            ("libcuda.so", true),
            ("ld-linux.so.2", true),
            ("libm-2.36.so", true),
            ("libcuda.a", false),
            ("cuda.so.1", false),
            ("libx.so.1.#prelink#", false),
            ("libx.so.1.#prelink#.a1B2c3", false),
            ("lib.so", true),
        ] {
            assert_eq!(is_name(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn links_that_stand_for_themselves() {
        assert!(is_proper_link(b"libcuda.so.1", b"libcuda.so.1"));
        assert!(is_proper_link(b"libcuda.so", b"libcuda.so.1"));
        assert!(!is_proper_link(
            b"libGLX_indirect.so.0",
            b"libGLX_nvidia.so.0"
        ));
        assert!(!is_proper_link(b"libcuda.so.1.1", b"libcuda.so.1"));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn kinds_of_machines() {
        let flags = |class, machine, needs| {
            let identity = Identity {
                class,
                machine,
                flags: 0,
            };
            flags(identity, || Ok::<_, ()>(needs)).unwrap()
        };
        assert_eq!(flags(2, 62, false), Some(0x303));
        assert_eq!(flags(1, 3, true), Some(3));
        assert_eq!(flags(1, 3, false), Some(1));
        assert_eq!(flags(2, 183, true), None);
    }
}
