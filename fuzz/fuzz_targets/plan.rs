//! The text by which the runtime passes a plan to its hook: any text is refused with a reason, or is exactly what would be
//! written for its meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::plan::handover::{MAX_LEN, decode, encode};

fuzz_target!(|text: &str| {
    match decode(text) {
        Ok(intents) => match encode(&intents) {
            Ok(again) => assert_eq!(again, text),
            Err(_) => assert!(text.len() > MAX_LEN || text.contains('\u{fffd}')),
        },
        Err(error) => assert!(!error.message().is_empty()),
    }
});
