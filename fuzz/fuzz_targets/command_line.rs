//! Command lines: none causes a panic, and a line that getopt's rules accept is read the same when it is spelt out.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;

#[allow(
    dead_code,
    unused_imports,
    reason = "the program's modules, of which a part is used"
)]
#[path = "../../nvc-cli/src"]
mod program {
    pub(crate) mod args;
    pub(crate) mod getopt;
}
use program::{args, getopt};

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<OsString> = bytes
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let caller = getopt::Caller::new(Some("bin/nvidia-container-cli".into()));
    match getopt::read(&caller, &words) {
        getopt::Line::Run(line) => {
            assert!(line.command_words <= words.len());
            let spelt_out = line.spelt_out();
            match getopt::read(&caller, &spelt_out) {
                getopt::Line::Run(again) => assert_eq!(again.spelt_out(), spelt_out),
                other => panic!("{spelt_out:?}: {other:?}"),
            }
        }
        getopt::Line::Ask(question, command) => {
            let shown = format!("{question:?} {command:?}");
            assert!(!shown.is_empty());
        }
        getopt::Line::Mistake(text) => assert!(!text.is_empty()),
    }
});
