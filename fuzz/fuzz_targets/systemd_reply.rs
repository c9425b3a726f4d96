//! systemd's answer: what is read is contained in it, and is not longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::systemd_reply;

fuzz_target!(|bytes: &[u8]| {
    let Some(Some((_, outcome))) = systemd_reply(bytes) else {
        return;
    };
    let texts = outcome.unwrap_or_else(|name| vec![name]);
    for text in &texts {
        let is_there = |part: &str| {
            part.is_empty()
                || bytes
                    .windows(part.len())
                    .any(|there| there == part.as_bytes())
        };
        // Bytes that are no text are replaced.
        assert!(text.split('\u{fffd}').all(is_there), "{text:?}");
    }
    let length: usize = texts.iter().map(String::len).sum();
    assert!(length <= 3 * bytes.len());
});
