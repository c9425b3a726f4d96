//! ELF files: all results lie in the file, little of it is read, and a second reading gives the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::{elf, has_interpreter};

const NAMES: &[&str] = &["libnvidia-glcore.so", "libc.so", "lib"];
/// Headers, up to 128 segments of up to 64 KiB each in which two notes are looked for, and names.
const MAX_BYTES_READ: usize = (2 * 128 + 2) * (64 << 10) + 64 * (4 << 10);

fuzz_target!(|bytes: &[u8]| {
    let _ = has_interpreter(bytes);
    let _ = has_interpreter(bytes.get(..4096).unwrap_or(bytes));
    let Some(found) = elf(bytes, NAMES) else {
        return;
    };
    assert!(bytes.starts_with(b"\x7fELF"));
    let contains = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    if found.abi.is_some() {
        assert!(contains(b"GNU\0"));
    }
    if let Some(id) = &found.build_id {
        assert!(contains(&[b"GNU\0", &id[..]].concat()));
    }
    if found.needs == Some(true) {
        assert!(contains(b"lib"));
    }
    assert!(found.read <= MAX_BYTES_READ, "{}", found.read);
    assert_eq!(elf(bytes, NAMES), Some(found));
});
