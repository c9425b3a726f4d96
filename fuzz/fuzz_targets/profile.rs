//! Application profiles that the container may have written: another GPU is another bit, in time and memory
//! proportional to the file's size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::testing::{profile, profile_with};

fuzz_target!(|input: (u8, u16, &str)| {
    let (repeated, minor, text) = input;
    // A fuzzer cannot find long masks by itself.
    let text = match repeated {
        0..=200 => text.to_owned(),
        _ => format!("0x{}{text}", "f".repeat(usize::from(repeated - 200) << 10)),
    };
    let minor = u32::from(minor);
    let Some(new) = profile_with(&text, minor) else {
        return;
    };
    let old = bits(&text).expect("there was a mask");
    assert!(new.len() <= profile(&[minor]).len().max(text.len() + 200));
    let mut expected = old;
    expected.resize(expected.len().max(minor as usize + 1), false);
    expected[minor as usize] = true;
    let mut found = bits(&new).expect("there is a mask");
    for mask in [&mut expected, &mut found] {
        while mask.last() == Some(&false) {
            mask.pop();
        }
    }
    assert_eq!(found, expected);
    assert_eq!(profile_with(&new, minor), Some(new));
});

/// The mask's bits, the lowest first.
fn bits(text: &str) -> Option<Vec<bool>> {
    let (_, digits) = text.split_once("0x")?;
    let end = digits
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let digits = digits[..end]
        .chars()
        .rev()
        .map(|c| c.to_digit(16).expect("a digit"));
    Some(
        digits
            .flat_map(|digit| (0..4).map(move |bit| digit >> bit & 1 == 1))
            .collect(),
    )
}
