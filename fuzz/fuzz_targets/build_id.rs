//! Starts of programs: a build id is hexadecimal, and its bytes lie in the file, behind the name of their note.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvc_hostfile::ours::build_id;

fuzz_target!(|bytes: &[u8]| {
    let Some(id) = build_id(bytes) else {
        return;
    };
    assert!(bytes.starts_with(b"\x7fELF\x02\x01"));
    assert!(!id.is_empty() && id.len() % 2 == 0);
    assert!(
        id.bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    );
    let digits = |at: usize| {
        id.get(at..at + 2)
            .and_then(|text| u8::from_str_radix(text, 16).ok())
    };
    let raw: Vec<u8> = (0..id.len()).step_by(2).filter_map(digits).collect();
    let note = [b"GNU\0".as_slice(), &raw].concat();
    assert!(bytes.windows(note.len()).any(|part| part == note));
    assert_eq!(build_id(bytes), Some(id));
});
