//! Matches names with shell patterns of `*`, `?`, `[...]` and a backslash before any letter.
//!
//! An image can control both, so this does not take exponential time: only the last of several stars is retried, since it
//! can match everything that an earlier one could.

#![forbid(unsafe_code)]

/// Returns true if a name matches a pattern; both are bytes, or both are letters. An unfinished list in brackets, or a
/// backslash at the end, matches nothing.
pub fn matches<C: Copy + Ord + From<u8>>(pattern: &[C], name: &[C]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Position for backtracking: the last star, and the number of letters that it matches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*'.into()) {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = fits(pattern, p, name[n]) {
            (p, n) = (next, n + 1);
        } else if let Some((at, end)) = star {
            star = Some((at, end + 1));
            (p, n) = (at + 1, end + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*'.into())
}

/// Returns the pattern's next position if its part at `p` matches a letter.
fn fits<C: Copy + Ord + From<u8>>(pattern: &[C], p: usize, letter: C) -> Option<usize> {
    let at = |place: usize| pattern.get(place).copied();
    let is = |place: usize, byte: u8| at(place) == Some(byte.into());
    let own = at(p)?;
    if own == b'?'.into() {
        return Some(p + 1);
    }
    if own == b'\\'.into() {
        return (at(p + 1)? == letter).then_some(p + 2);
    }
    if own != b'['.into() {
        return (own == letter).then_some(p + 1);
    }
    let negated = is(p + 1, b'^') || is(p + 1, b'!');
    let first = p + 1 + usize::from(negated);
    let (mut place, mut found) = (first, false);
    while !is(place, b']') || place == first {
        let low = at(place)?;
        let is_range = is(place + 1, b'-') && at(place + 2)? != b']'.into();
        let high = if is_range { at(place + 2)? } else { low };
        found |= (low..=high).contains(&letter);
        place += if is_range { 3 } else { 1 };
    }
    (found != negated).then_some(place + 1)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_are_those_of_the_shell() {
        let table = [
            ("runc", "runc", true),
            ("runc", "runcs", false),
            ("run?", "runc", true),
            ("run?", "run", false),
            ("*.csv", "a.csv", true),
            ("*.conf", "a.conf.bak", false),
            ("*", "", true),
            ("**", "abc", true),
            ("a*?", "a", false),
            ("a?c*", "abcd", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("*a*b", "xbxa", false),
            ("[a-c]x[!d]", "bxe", true),
            ("[a-c]x[^d]", "bxd", false),
            ("[]x]", "]", true),
            ("[ab", "a", false),
            ("[a-", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("\\", "a", false),
        ];
        for (pattern, name, expected) in table {
            let letters = |text: &str| text.chars().collect::<Vec<char>>();
            let by_letter = matches(&letters(pattern), &letters(name));
            assert_eq!(by_letter, expected, "{pattern} {name}");
            let by_byte = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(by_byte, expected, "{pattern} {name}");
        }
        // Exponential time would never end.
        let many = [&b"*a".repeat(100)[..], b"b"].concat();
        assert!(!matches(&many, &[b'a'; 255]));
    }
}
