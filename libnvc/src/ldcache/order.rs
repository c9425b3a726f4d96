//! Sorts the loader cache's entries as glibc's binary search expects them.
//!
//! Names descend, and digits in them compare as numbers. Entries of one name and kind are sorted from the most specific
//! to the least. The rest follows the order in which ldconfig visits directories, which the entries do not record.

use std::cmp::Ordering;
use std::ffi::c_char;

use super::contents::{CacheLine, SUBDIRECTORY};

/// Compares names with numbers in them: `libx.so.10` is greater than `libx.so.9`.
///
/// glibc subtracts numbers, which is no order for numbers more than 2^31 apart. Sorting needs one, so this compares.
pub(crate) fn names(one: &[u8], other: &[u8]) -> Ordering {
    let (mut one, mut other) = (one, other);
    loop {
        let (Some(a), Some(b)) = (one.first(), other.first()) else {
            // The shorter one is less: the end counts as a zero character.
            return character(one).cmp(&character(other));
        };
        match (a.is_ascii_digit(), b.is_ascii_digit()) {
            (true, true) => {
                let (first, rest_of_one) = number(one);
                let (second, rest_of_other) = number(other);
                if first != second {
                    return first.cmp(&second);
                }
                (one, other) = (rest_of_one, rest_of_other);
            }
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) if a != b => return character(one).cmp(&character(other)),
            (false, false) => (one, other) = (&one[1..], &other[1..]),
        }
    }
}

/// Compares entries; equal ones keep the order of their directories.
pub(super) fn entries(one: &CacheLine<'_>, other: &CacheLine<'_>) -> Ordering {
    // Neighbours often have the same name.
    let by_name = if one.key == other.key {
        Ordering::Equal
    } else {
        names(other.key, one.key)
    };
    by_name
        .then_with(|| other.flags.cmp(&one.flags))
        .then_with(|| special(one, other))
        .then_with(|| other.kernel.cmp(&one.kernel))
}

/// Ranks an entry: subdirectories of glibc-hwcaps first, by number; then those for the most features.
fn special(one: &CacheLine<'_>, other: &CacheLine<'_>) -> Ordering {
    let subdirectory = |line: &CacheLine<'_>| {
        (line.features & SUBDIRECTORY != 0).then_some(line.features & 0xffff_ffff)
    };
    match (subdirectory(one), subdirectory(other)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => {
            let weight = |line: &CacheLine<'_>| (line.features.count_ones(), line.features);
            weight(other).cmp(&weight(one))
        }
    }
}

/// Splits off the leading number, as C computes it.
fn number(text: &[u8]) -> (i32, &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(digits);
    let value = digits.iter().fold(0_i32, |value, digit| {
        value.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'))
    });
    (value, rest)
}

/// Returns the first character as C compares it; the signedness of `char` depends on the machine.
#[allow(clippy::cast_possible_wrap, clippy::unnecessary_cast)]
fn character(text: &[u8]) -> c_char {
    text.first().map_or(0, |&byte| byte as c_char)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_in_names_are_numbers() {
        for (one, other, expected) in [
            ("libx.so.10", "libx.so.9", Ordering::Greater),
            ("libx.so.1", "libx.so.1", Ordering::Equal),
            ("libx.so.01", "libx.so.1", Ordering::Equal),
            ("libx.so", "libx.so.1", Ordering::Less),
            ("lib1", "libx", Ordering::Greater),
            ("libx", "lib1", Ordering::Less),
            (
                "libGLX_nvidia.so.0",
                "libGLX_indirect.so.0",
                Ordering::Greater,
            ),
            ("", "", Ordering::Equal),
            ("", "a", Ordering::Less),
        ] {
            assert_eq!(
                names(one.as_bytes(), other.as_bytes()),
                expected,
                "{one} {other}"
            );
        }
    }

    fn line(key: &'static str, flags: i32, features: u64, kernel: u32) -> CacheLine<'static> {
        CacheLine {
            flags,
            kernel,
            features,
            key: key.as_bytes(),
            directory: b"",
            rest: b"",
        }
    }

    #[test]
    fn special_entries_come_first() {
        let sorted = [
            line("libx.so.2", 3, 0, 0),
            line("libx.so.1", 0x303, SUBDIRECTORY | 2 << 32, 0),
            line("libx.so.1", 0x303, SUBDIRECTORY | 1, 0),
            line("libx.so.1", 0x303, 0b111, 0),
            line("libx.so.1", 0x303, 0b1010, 0),
            line("libx.so.1", 0x303, 0b1001, 0),
            line("libx.so.1", 0x303, 0, 5),
            line("libx.so.1", 0x303, 0, 0),
            line("libx.so.1", 3, 0, 0),
            line("liba.so", 0x303, 0, 0),
        ];
        assert!(sorted.is_sorted_by(|one, other| entries(one, other).is_lt()));
        assert!(entries(&sorted[0], &sorted[0]).is_eq());
    }

    proptest! {
        #[test]
        fn comparing_is_symmetric(one in "[a-c0-2.]{0,12}", other in "[a-c0-2.]{0,12}") {
            let (one, other) = (one.as_bytes(), other.as_bytes());
            prop_assert_eq!(names(one, other), names(other, one).reverse());
        }

        #[test]
        fn it_is_an_order(mut names in prop::collection::vec("[a\u{e9}]?(0|1500000000|3000000000|[0-9]{9,11})?[b.]?", 64)) {
            // Sorting by an inconsistent order panics.
            names.sort_by(|one, other| super::names(one.as_bytes(), other.as_bytes()));
            for (number, one) in names.iter().enumerate() {
                let later = names.iter().skip(number);
                for other in later {
                    prop_assert!(super::names(one.as_bytes(), other.as_bytes()).is_le(), "{one} {other}");
                }
            }
        }
    }
}
