//! The loader's cache: for any bytes, entries lie inside them, and a cache written from the entries has the same ones.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::{CacheEntry, ldcache};

fuzz_target!(|bytes: &[u8]| {
    let Some(entries) = ldcache(bytes) else {
        return;
    };
    assert!(entries.len() <= bytes.len() / 24);
    let inside = bytes.as_ptr_range();
    for (_, name, path) in &entries {
        for text in [name, path] {
            let range = text.as_ptr_range();
            assert!(inside.start <= range.start && range.end < inside.end);
            assert!(!text.contains(&0));
        }
    }
    // Strings may be shared by many entries.
    if entries.len() < 100 {
        assert_eq!(ldcache(&write(&entries)), Some(entries));
    }
});

/// A cache in the new layout.
fn write(entries: &[CacheEntry<'_>]) -> Vec<u8> {
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    bytes.extend(u32::to_ne_bytes(entries.len() as u32));
    bytes.extend([0; 24]);
    let mut strings = Vec::new();
    let base = bytes.len() + 24 * entries.len();
    for (flags, name, path) in entries {
        bytes.extend(flags.to_ne_bytes());
        for text in [name, path] {
            bytes.extend(u32::to_ne_bytes((base + strings.len()) as u32));
            strings.extend_from_slice(text);
            strings.push(0);
        }
        bytes.extend([0; 12]);
    }
    bytes.extend(strings);
    bytes
}
