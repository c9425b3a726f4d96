//! The image's loader cache: a sound one is rewritten with the same entries; after a search of a directory, it has each
//! library found there once and all entries of other directories.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::{ldcache, rewritten_ldcache};

const NEW: &[u8] = b"/usr/lib64";
const FOUND: [(&[u8], i32); 4] = [
    (b"libcuda.so.1", 0x303),
    (b"libc.so.6", 0x303),
    (b"lib3000000000.so", 3),
    (b"a", -1),
];

fuzz_target!(|bytes: &[u8]| {
    let is_searched = |directory: &[u8]| !directory.is_empty() && directory.len() % 2 == 0;
    let Some(rewritten) = rewritten_ldcache(bytes, NEW, &FOUND, is_searched) else {
        return;
    };
    let before = ldcache(bytes).unwrap();
    assert_eq!(ldcache(&rewritten.same).unwrap(), before);
    let again = rewritten_ldcache(&rewritten.same, NEW, &FOUND, is_searched).unwrap();
    assert_eq!(again.same, rewritten.same);
    assert_eq!(again.updated, rewritten.updated);

    let after = ldcache(&rewritten.updated).unwrap();
    for (name, flags) in FOUND {
        let path = [NEW, b"/", name].concat();
        let entry = (flags, name, path.as_slice());
        assert_eq!(after.iter().filter(|known| **known == entry).count(), 1);
    }
    for entry in before.iter().filter(|entry| is_kept(entry.2)) {
        assert!(after.contains(entry), "{entry:?}");
    }
    // A second search changes nothing more.
    if let Some(second) = rewritten_ldcache(&rewritten.updated, NEW, &FOUND, |base| base == NEW) {
        assert_eq!(ldcache(&second.updated).unwrap().len(), after.len());
    }
});

/// Returns true if neither the file's directory nor, for entries for certain CPUs, one above it is searched.
fn is_kept(path: &[u8]) -> bool {
    let slashes = (1..path.len()).filter(|&at| path[at] == b'/');
    !slashes.into_iter().any(|at| at % 2 == 0)
}
