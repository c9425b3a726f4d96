//! Compares versions like `535.261.03` and `12.6` numerically.

/// Returns true if one version is greater than another.
pub(super) fn is_newer(one: &str, other: &str) -> bool {
    let (one, other) = (numbers(one), numbers(other));
    let length = one.len().max(other.len());
    let padded = |numbers: &[u64]| {
        (0..length)
            .map(|n| numbers.get(n).copied().unwrap_or(0))
            .collect::<Vec<_>>()
    };
    padded(&one) > padded(&other)
}

/// Returns the first number.
pub(super) fn major(version: &str) -> Option<u64> {
    version.split('.').next()?.parse().ok()
}

fn numbers(version: &str) -> Vec<u64> {
    version
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::is_newer;

    #[test]
    fn numbers_decide() {
        assert!(is_newer("535.261.03", "535.99"));
        assert!(is_newer("12.10", "12.6"));
        assert!(!is_newer("12.6", "12.6.0"));
    }
}
