//! Names architectures and links for version 2, up to the newest.

/// Returns the name of an architecture by its compute capability.
pub(super) fn architecture(arch: (i32, i32)) -> Option<&'static str> {
    Some(match arch {
        (1, _) => "Tesla",
        (2, _) => "Fermi",
        (3, _) => "Kepler",
        (5, _) => "Maxwell",
        (6, _) => "Pascal",
        (7, 0 | 2) => "Volta",
        (7, _) => "Turing",
        (8, 9) => "Ada Lovelace",
        (8, _) => "Ampere",
        (9, _) => "Hopper",
        (10..=12, _) => "Blackwell",
        _ => return None,
    })
}

/// Returns the name of a topology distance between two GPUs.
pub(super) fn distance(level: Option<i32>) -> Option<&'static str> {
    Some(match level? {
        0 => "same board",
        10 => "one PCIe switch",
        20 => "several PCIe switches",
        30 => "host bridge",
        40 => "same CPU",
        50 => "across CPUs",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (arch, name) in [
            ((6, 1), Some("Pascal")),
            ((7, 0), Some("Volta")),
            ((7, 5), Some("Turing")),
            ((8, 6), Some("Ampere")),
            ((8, 9), Some("Ada Lovelace")),
            ((9, 0), Some("Hopper")),
            ((12, 0), Some("Blackwell")),
            ((99, 0), None),
        ] {
            assert_eq!(architecture(arch), name);
        }
        assert_eq!(distance(Some(30)), Some("host bridge"));
        assert_eq!(distance(Some(31)), None);
        assert_eq!(distance(None), None);
    }
}
