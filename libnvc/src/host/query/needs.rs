//! Determines which of the host's C library parts NVML needs, so that the query process loads only those.
//!
//! Each one costs the loader a tenth of a millisecond while NVML waits. Drivers differ in their needs. If NVML
//! is not found, or needs an unknown library, all parts are loaded.

use std::ffi::OsStr;
use std::path::Path;

use crate::elf::Library;
use crate::host::{DriverRoot, search};
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
        search::library(&root, nvml.to_str()?, &[])?
    };
    let library = Library::open(root.open_file(&path).ok()?).ok()?;
    let needed = library.names().ok()?.needed;
    let is_known = |name: &Vec<u8>| {
        ALWAYS_THERE.iter().any(|known| name.starts_with(known))
            || HOST_LIBRARIES.iter().any(|known| name == known.as_bytes())
    };
    needed.iter().all(is_known).then(|| {
        let is_needed = |known: &&str| needed.iter().any(|name| name == known.as_bytes());
        HOST_LIBRARIES.into_iter().filter(is_needed).collect()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::elf;

    #[cfg(target_arch = "x86_64")] // the libraries are of this machine
    #[test]
    fn only_needed_libraries() {
        let name = "libnvidia-ml.so.1";
        let real = [
            "libdl.so.2",
            "libm.so.6",
            "libc.so.6",
            "ld-linux-x86-64.so.2",
        ];
        let all = &HOST_LIBRARIES[..];
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("usr/lib64");
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(of_library(root.path(), name.as_ref()), all);
        for (needed, expected) in [
            (&["libc.so.6"][..], &[][..]),
            (&real, &["libm.so.6", "libdl.so.2"]),
            (&["libc.so.6", "libstdc++.so.6"], all),
            (&["libm.so.60"], all),
        ] {
            let object = elf::tests::build(None, Some(needed));
            fs::write(directory.join(name), object).unwrap();
            for name in [name, "/usr/lib64/libnvidia-ml.so.1"] {
                assert_eq!(of_library(root.path(), name.as_ref()), expected);
            }
        }
        fs::write(root.path().join("text"), "text").unwrap();
        assert_eq!(of_library(root.path(), "/text".as_ref()), all);
    }
}
