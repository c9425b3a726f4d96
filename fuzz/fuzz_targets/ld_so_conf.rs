//! The image's ld.so.conf, its patterns, and ldconfig's output.
#![no_main]

use std::os::unix::ffi::OsStrExt;

use libfuzzer_sys::fuzz_target;
use libnvc::pattern;
use libnvc::testing::{kept_output, ld_so_conf};

// A name, a line's end, a pattern, a line's end, a file.
fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
    let [name, pattern, text] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let lines = ld_so_conf(text);
    let mut again = Vec::new();
    for (path, pattern) in &lines {
        assert!(path.is_absolute());
        let path = path.as_os_str().as_bytes();
        assert!(!path.contains(&b'\n') && !path.contains(&b'#'));
        if let Some(pattern) = pattern {
            assert!(!pattern.contains(&b'/') && !pattern.is_empty());
            again.extend(b"include ");
            again.extend(path);
            again.push(b'/');
            again.extend(pattern);
        } else {
            again.extend(path);
        }
        again.push(b'\n');
    }
    assert_eq!(ld_so_conf(&again), lines);

    if pattern.len() < 300 && name.len() < 300 {
        let found = pattern::matches(pattern, name);
        let is_modelled = !pattern.iter().any(|byte| b"[\\".contains(byte));
        assert!(!is_modelled || found == model(pattern, name));
    }

    let (kept, left_out) = kept_output(&[text, name, b"\n", pattern]);
    let size: usize = kept.iter().map(String::len).sum();
    assert!(size <= 64 << 10);
    assert!(left_out <= (text.len() + name.len() + pattern.len()) as u64);
    // They are raw; the function that writes them escapes them.
    assert!(!kept.iter().any(|line| line.contains('\n')));
});

/// The reference for patterns of stars and question marks: a table of whether each suffix of the pattern matches each
/// suffix of the name.
fn model(pattern: &[u8], name: &[u8]) -> bool {
    let mut row: Vec<bool> = (0..=name.len()).map(|at| at == name.len()).collect();
    for byte in pattern.iter().rev() {
        row = match byte {
            b'*' => {
                let any = |at: usize| row[at..].iter().any(|fits| *fits);
                (0..=name.len()).map(any).collect()
            }
            byte => {
                let fits = |at: usize| {
                    at < name.len() && (*byte == b'?' || *byte == name[at]) && row[at + 1]
                };
                (0..=name.len()).map(fits).collect()
            }
        };
    }
    row[0]
}
