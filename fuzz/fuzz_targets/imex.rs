//! Lists of IMEX channels: only valid numbers, in the given order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::select::parse_imex_channels;

fuzz_target!(|list: &str| {
    let items = list.split(',').filter(|item| !item.is_empty());
    let Ok(channels) = parse_imex_channels(list) else {
        return;
    };
    assert_eq!(channels.len(), items.clone().count());
    for (item, channel) in items.zip(&channels) {
        assert!(*channel < 1 << 20);
        let digits =
            item.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b' || c == '+');
        assert_eq!(digits.parse(), Ok(*channel));
    }
    let again: Vec<String> = channels.iter().map(u32::to_string).collect();
    assert_eq!(parse_imex_channels(&again.join(",")).ok(), Some(channels));
});
