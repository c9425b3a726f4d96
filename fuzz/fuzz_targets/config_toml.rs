//! config.toml: any text is refused with its place, or gives a configuration; unknown keys do not change it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvc_policy::config::{Error, parse};

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                assert!(warning.starts_with("line "), "{warning}");
                assert!(!warning.contains('\n'));
            }
            assert_eq!(
                parse(text).map(|again| again.config).ok(),
                Some(loaded.config)
            );
        }
        Err(Error::Syntax(text) | Error::Type(text)) => assert!(!text.is_empty()),
        Err(Error::Value(text)) => assert!(text.contains("not host-relative")),
        Err(Error::Missing(_) | Error::Read { .. }) => unreachable!("nothing is read"),
    }
});
