//! Determines which of the host's C library parts NVML needs, so that the query process loads only those.
//!
//! Each one costs the loader a tenth of a millisecond while NVML waits. Drivers differ in their needs. If the driver
//! root's cache does not list NVML, or NVML needs an unknown library, all parts are loaded.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::elf::Library;
use crate::host::arch::Abi;
use crate::host::{DEFAULT_LDCACHE, DriverRoot};
use crate::ldcache::format::Cache;
use crate::path::HostPath;

/// Parts of the C library and the compiler's run time that NVML may need. Those of the driver root may belong to
/// another C library than the running one.
pub(super) const HOST_LIBRARIES: [&str; 5] = [
    "libm.so.6",
    "librt.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "libgcc_s.so.1",
];

/// Libraries that every program has loaded: the C library itself and the loader, whose name depends on the
/// architecture.
const ALWAYS_THERE: [&[u8]; 3] = [b"libc.so.6", b"ld-linux", b"ld64.so"];

/// A bit more than the longest name in [`HOST_LIBRARIES`]: reading this much of a name suffices to compare it.
const MAX_NAME_LEN: usize = 20;

/// Returns the [`HOST_LIBRARIES`] that NVML, or another library of the driver, needs, in that order. `library` is its
/// name for the loader, or a path.
pub(super) fn of_library(root: &Path, nvml: &OsStr) -> Vec<&'static str> {
    find(root, nvml).unwrap_or_else(|| HOST_LIBRARIES.to_vec())
}

fn find(root: &Path, nvml: &OsStr) -> Option<Vec<&'static str>> {
    let root = DriverRoot::open(root).ok()?;
    let path = if Path::new(nvml).is_absolute() {
        HostPath::new(nvml)
    } else {
        cached(&root, nvml)?
    };
    let library = Library::open(root.open_file(&path).ok()?).ok()?;
    let mut needed = Vec::new();
    let read_all = library.any_needed(MAX_NAME_LEN, |name| {
        needed.push(name.to_vec());
        false
    });
    read_all.ok()?;
    let is_known = |name: &Vec<u8>| {
        ALWAYS_THERE.iter().any(|known| name.starts_with(known))
            || HOST_LIBRARIES.iter().any(|known| name == known.as_bytes())
    };
    needed.iter().all(is_known).then(|| {
        let is_needed = |known: &&str| needed.iter().any(|name| name == known.as_bytes());
        HOST_LIBRARIES.into_iter().filter(is_needed).collect()
    })
}

/// Returns the file that the loader will take; None unless it is unambiguous.
fn cached(root: &DriverRoot, name: &OsStr) -> Option<HostPath> {
    let bytes = root.read(&HostPath::new(DEFAULT_LDCACHE)).ok()?;
    let mut found = Cache::parse(&bytes)?.entries().filter(|entry| {
        entry.key == name.as_bytes() && Abi::of_cache_entry(entry.flags) == Some(Abi::Native)
    });
    let first = found.next()?;
    found
        .all(|entry| entry.value == first.value)
        .then(|| HostPath::new(OsStr::from_bytes(first.value)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::elf;
    use crate::ldcache::format;

    const NATIVE: i32 = 0x303;

    /// Makes a driver root with a library that needs `needed`, and a cache with these entries.
    fn root(needed: &[&str], cache: &[(i32, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(
            root.path().join("etc/ld.so.cache"),
            format::tests::build(cache),
        )
        .unwrap();
        fs::write(
            root.path().join("nvml"),
            elf::tests::build(None, Some(needed)),
        )
        .unwrap();
        root
    }

    #[cfg(target_arch = "x86_64")] // the cache's flags
    #[test]
    fn only_needed_libraries() {
        let name = "libnvidia-ml.so.1";
        let one: &[(i32, &str, &str)] = &[(3, name, "/nvml32"), (NATIVE, name, "/nvml")];
        let two: &[(i32, &str, &str)] = &[(NATIVE, name, "/nvml"), (NATIVE, name, "/other/nvml")];
        let real = [
            "libdl.so.2",
            "libm.so.6",
            "libc.so.6",
            "ld-linux-x86-64.so.2",
        ];
        let all = &HOST_LIBRARIES[..];
        for (needed, cache, expected) in [
            (&["libc.so.6"][..], one, &[][..]),
            (&real, one, &["libm.so.6", "libdl.so.2"]),
            (&["libc.so.6", "libstdc++.so.6"], one, all),
            (&["libm.so.60"], one, all),
            (&real, two, all),
            (&real, &[], all),
        ] {
            let root = root(needed, cache);
            assert_eq!(
                of_library(root.path(), name.as_ref()),
                expected,
                "{needed:?}"
            );
        }
        let root = root(&real, &[]);
        let by_path = of_library(root.path(), "/nvml".as_ref());
        assert_eq!(by_path, ["libm.so.6", "libdl.so.2"]);
        assert_eq!(of_library(root.path(), "/etc/ld.so.cache".as_ref()), all);
    }
}
