//! The driver's list of MIG capabilities: numbers are those of the file, and the list survives writing and reading.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::mig_minors;

fuzz_target!(|text: &str| {
    let found = mig_minors(text);
    assert!(found.len() <= text.lines().count());
    let mut again = String::new();
    for (name, minor) in &found {
        assert!(!name.contains([' ', '\n']));
        again += &format!("{name} {minor}\n");
    }
    assert_eq!(mig_minors(&again), found);
});
