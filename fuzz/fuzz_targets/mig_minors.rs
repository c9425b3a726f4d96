//! The driver's list of MIG capabilities: numbers are those of the file, and the list survives writing and reading.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::mig_minors;

fuzz_target!(|text: &str| {
    let found = mig_minors(text);
    assert!(found.len() <= text.lines().count());
    let mut again = String::new();
    for (name, gpu, minor) in &found {
        assert!(!name.contains([' ', '\n']));
        if let Some(gpu) = gpu {
            let number = name
                .strip_prefix("gpu")
                .and_then(|rest| rest.split('/').next());
            assert_eq!(number.and_then(|number| number.parse().ok()), Some(*gpu));
        }
        again += &format!("{name} {minor}\n");
    }
    assert_eq!(mig_minors(&again), found);
});
