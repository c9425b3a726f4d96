//! Command lines: none causes a panic, and a line that getopt's rules accept is read the same when it is spelt out.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;
use nvc_options::getopt;

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<OsString> = bytes
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let caller = getopt::Caller::new(Some("bin/nvidia-container-cli".into()));
    match getopt::read(&caller, &words) {
        getopt::Parsed::Run(line) => {
            assert!(line.command_words <= words.len());
            let spelt_out = line.spelt_out();
            match getopt::read(&caller, &spelt_out) {
                getopt::Parsed::Run(again) => assert_eq!(again.spelt_out(), spelt_out),
                other => panic!("{spelt_out:?}: {other:?}"),
            }
        }
        getopt::Parsed::Ask(question, command) => {
            let shown = format!("{question:?} {command:?}");
            assert!(!shown.is_empty());
        }
        getopt::Parsed::Mistake(text) | getopt::Parsed::Unknown(_, text) => {
            assert!(!text.is_empty())
        }
    }
});
