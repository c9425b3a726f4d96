//! Reads versions as Go's semver package does.

use std::cmp::Ordering;

/// A version, `[v]A`, `[v]A.B` or `[v]A.B.C`; the last with the suffixes of semantic versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Version<'a> {
    /// Decimal numbers without leading zeros; those that are not written are 0.
    pub(crate) numbers: [&'a str; 3],
    is_pre_release: bool,
}

impl<'a> Version<'a> {
    /// Parses a version.
    pub fn parse(text: &'a str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let core_end = text.find(['-', '+']).unwrap_or(text.len());
        let (core, suffix) = text.split_at(core_end);
        let parts: Vec<&str> = core.split('.').collect();
        let is_number = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_digit())
                && (part.len() == 1 || !part.starts_with('0'))
        };
        if parts.len() > 3 || !parts.iter().all(is_number) {
            return None;
        }
        if !suffix.is_empty() && (parts.len() != 3 || !is_suffix(suffix)) {
            return None;
        }
        let number = |at: usize| parts.get(at).copied().unwrap_or("0");
        Some(Self {
            numbers: [number(0), number(1), number(2)],
            is_pre_release: suffix.starts_with('-'),
        })
    }

    /// Compares versions. Two pre-releases of one version count as equal.
    pub fn order(&self, other: &Self) -> Ordering {
        let numbers = |of: &Self| of.numbers.map(|number| (number.len(), number.to_owned()));
        let order = numbers(self).cmp(&numbers(other));
        order.then(other.is_pre_release.cmp(&self.is_pre_release))
    }
}

/// Returns true for a pre-release, a build or both.
fn is_suffix(suffix: &str) -> bool {
    let (pre_release, build) = match suffix.split_once('+') {
        Some((pre_release, build)) => (pre_release, Some(build)),
        None => (suffix, None),
    };
    let identifiers = |text: &str, numbers_are_plain: bool| {
        text.split('.').all(|part| {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !(numbers_are_plain && digits && part.len() > 1 && part.starts_with('0'))
        })
    };
    (pre_release.is_empty()
        || pre_release
            .strip_prefix('-')
            .is_some_and(|text| identifiers(text, true)))
        && build.is_none_or(|text| identifiers(text, false))
}
