//! Command lines: by no grammar does one cause a panic or lose a word, and a line that getopt's rules accept is read the
//! same in its full form.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;
use nvc_options::scan::{Event, GETOPT, GO, PFLAG, Scanner, URFAVE};
use nvc_options::{args, ctk, getopt};

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<OsString> = bytes
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    for grammar in [&GETOPT, &GO, &URFAVE, &PFLAG] {
        let mut scanner = Scanner::new(grammar, &words);
        let mut taken = 0;
        while let Some(event) = scanner.next(&[args::TABLE.options, &ctk::GLOBAL]) {
            let most = match event {
                Ok(Event::Option(_, Some(_))) => 2,
                _ => 1,
            };
            let now = words.len() - scanner.rest().len();
            assert!(now <= taken + most);
            taken = now;
        }
        let end = usize::from(scanner.is_ended());
        assert_eq!(taken + end + scanner.rest().len(), words.len());
    }

    let caller = getopt::Caller::new(Some("bin/nvidia-container-cli".into()));
    match getopt::read(&caller, &words) {
        getopt::Parsed::Run(line) => {
            assert!(line.command_words <= words.len());
            let full = full(&line);
            match getopt::read(&caller, &full) {
                getopt::Parsed::Run(again) => assert_eq!(self::full(&again), full),
                other => panic!("{full:?}: {other:?}"),
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

/// Returns a line in its full form: `--option` or `--option=value` each, the command, its options, `--`, the operand.
fn full(line: &getopt::CommandLine) -> Vec<OsString> {
    let options = |given: &nvc_options::Given| -> Vec<OsString> {
        let spell = |(option, value): (&nvc_options::Opt, Option<&std::ffi::OsStr>)| {
            let mut word = OsString::from(format!("--{}", option.long));
            if let Some(value) = value {
                word.push("=");
                word.push(value);
            }
            word
        };
        given.iter().map(spell).collect()
    };
    let mut words = options(&line.global);
    words.push(line.command.name.into());
    words.extend(options(&line.options));
    if let Some(operand) = &line.operand {
        words.extend(["--".into(), operand.clone()]);
    }
    words
}
