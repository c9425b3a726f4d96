//! Finds the known key that a misspelled one probably means.

use super::schema::KEYS;

/// Returns the known key or table nearest to `name`, if it is near enough to be a typo.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    // The cost grows with the name's length, for each known key.
    if name.len() > 100 {
        return None;
    }
    let last = name.rsplit('.').next().unwrap_or(name);
    let by_text = KEYS
        .iter()
        .map(|key| (distance(name, key.name), key.name))
        .min()
        .filter(|(distance, _)| *distance <= 1 + last.len() / 4);
    // A known key in another table.
    by_text.map(|(_, key)| key).or_else(|| {
        KEYS.iter()
            .map(|key| key.name)
            .find(|key| key.rsplit('.').next() == Some(last) && last.len() > 4)
    })
}

/// Returns the edit distance of two texts.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, that) in other.iter().enumerate() {
            let change = diagonal + usize::from(letter != *that);
            diagonal = row[column + 1];
            row[column + 1] = change.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        assert_eq!(nearest("disable-requires"), Some("disable-require"));
        assert_eq!(
            nearest("nvidia-container-cli.no-cgroup"),
            Some("nvidia-container-cli.no-cgroups")
        );
        assert_eq!(
            nearest("no-cgroups"),
            Some("nvidia-container-cli.no-cgroups")
        );
        assert_eq!(nearest("frobnicate"), None);
        assert_eq!(nearest("nvidia-container-cli.frob"), None);
        assert_eq!(nearest(&"x".repeat(1000)), None);
    }

    #[test]
    fn distances_are_symmetric() {
        for (one, other, steps) in [("", "abc", 3), ("kitten", "sitting", 3), ("a", "a", 0)] {
            assert_eq!(distance(one, other), steps);
            assert_eq!(distance(other, one), steps);
        }
    }
}
