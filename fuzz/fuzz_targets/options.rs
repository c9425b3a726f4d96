//! Option words: a set is the same in any order and with any blanks, and no word is mistaken for another.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::options::{self, DriverOptions};

// One word begins with another, so that neither may be taken for the other.
const WORDS: &[(&str, DriverOptions)] = &[
    ("no-uvm", DriverOptions::NO_UVM),
    ("no-uvm-tools", DriverOptions::NO_MODESET),
    ("no-mps", DriverOptions::NO_MPS),
];

fuzz_target!(|text: &str| {
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let same = words.join(" ");
    let reversed = words.iter().rev().copied().collect::<Vec<_>>().join("  ");
    let short = text.len() <= 255 && reversed.len() <= 255;
    let parse = |words: &str| options::parse(words, WORDS);

    let set = parse(text);
    if let Ok(set) = &set {
        assert!(text.len() <= 255);
        // Each word alone is a part of the set.
        for word in &words {
            if let Ok(part) = parse(word) {
                assert!(set.contains(part));
            }
        }
        assert_eq!(parse(&same).ok(), Some(*set));
    }
    if short {
        assert_eq!(parse(&reversed).ok(), set.ok());
    }
});
