//! Finds the known key that a misspelled one probably means.

use nvc_program::hints;

use super::schema::KEYS;

/// Returns the known key or table nearest to `name`, if it is near enough to be a typo.
pub fn nearest(name: &str) -> Option<&'static str> {
    let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    let last = name.rsplit('.').next().unwrap_or(name);
    // A known key in another table.
    hints::nearest(name, &known).or_else(|| {
        let mut known = known.into_iter();
        known.find(|key| key.rsplit('.').next() == Some(last) && last.len() > 4)
    })
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
}
