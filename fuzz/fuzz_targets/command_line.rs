//! Command lines: none makes the program panic, and what getopt's rules accept, the option table accepts.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::LazyLock;

use clap::Command;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports, reason = "the program's modules, of which a part is used")]
#[path = "../../nvc-cli/src"]
mod program {
    pub(crate) mod args;
    pub(crate) mod getopt;
}
use program::{args, getopt};

static TABLE: LazyLock<Command> = LazyLock::new(args::command);

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<OsString> = bytes
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let caller = getopt::Caller::new(Some("bin/nvidia-container-cli".into()));
    match getopt::read(&caller, &TABLE, &words) {
        getopt::Line::Run(line) => {
            assert!(line.command_words <= words.len());
            if let Err(error) = TABLE.clone().try_get_matches_from(&line.args) {
                panic!("{:?}: {error}", line.args);
            }
        }
        getopt::Line::Ask(question, command) => {
            let shown = format!("{question:?} {command:?}");
            assert!(!shown.is_empty());
        }
        getopt::Line::Mistake(text) => assert!(!text.is_empty()),
    }
});
