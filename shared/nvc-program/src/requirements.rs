//! Reads an image's requirements on the driver and the GPUs from its environment.

/// Returns the requirements in libnvc's language; none if the container disables them. `counts_empty` says whether an
/// empty variable is a requirement: it is one that nothing fulfils.
pub fn of<'a>(
    variables: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    counts_empty: bool,
) -> Vec<&'a str> {
    if are_disabled(variables.clone()) {
        return Vec::new();
    }
    let is_one = |name: &str, value: &str| {
        // Jetson images select files by this one.
        name.starts_with("NVIDIA_REQUIRE_")
            && !name.starts_with("NVIDIA_REQUIRE_JETPACK")
            && (counts_empty || !value.is_empty())
    };
    let required = variables.filter(|(name, value)| is_one(name, value));
    required.map(|(_, value)| value).collect()
}

/// Returns true if the container disables requirements.
pub fn are_disabled<'a>(mut variables: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
    let found = variables.find(|(name, _)| *name == "NVIDIA_DISABLE_REQUIRE");
    let value = found.map_or("", |(_, value)| value);
    // As Go's strconv.ParseBool.
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_requirements_unless_disabled() {
        let needs = [
            ("NVIDIA_REQUIRE_CUDA", "cuda>=9.0"),
            ("NVIDIA_REQUIRE_X", ""),
            ("NVIDIA_REQUIRE_JETPACK", "csv-mounts=all"),
            ("NVIDIA_DISABLE_REQUIRE", "0"),
        ];
        assert_eq!(of(needs.into_iter(), true), ["cuda>=9.0", ""]);
        assert_eq!(of(needs.into_iter(), false), ["cuda>=9.0"]);
        let disabled = [("NVIDIA_DISABLE_REQUIRE", "True"), needs[0]];
        assert_eq!(of(disabled.into_iter(), true), [""; 0]);
    }
}
