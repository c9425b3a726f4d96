//! Lists of IMEX channels: only valid numbers, in the given order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::request::names;
use libnvc::select::parse_imex_channels;

fuzz_target!(|list: &str| {
    let items: Vec<&str> = names(list).collect();
    let Ok(channels) = parse_imex_channels(&items) else {
        return;
    };
    assert_eq!(channels.len(), items.len());
    for (item, channel) in items.into_iter().zip(&channels) {
        assert!(*channel < 1 << 20);
        let digits =
            item.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b' || c == '+');
        assert_eq!(digits.parse(), Ok(*channel));
    }
    let again: Vec<String> = channels.iter().map(u32::to_string).collect();
    assert_eq!(parse_imex_channels(&again).ok(), Some(channels));
});
