//! Recognises fully qualified CDI device names: `vendor/class=device`.

use std::collections::HashSet;

use super::Devices;

/// The kind of devices with a generated specification, whose names are NVML's.
pub const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

/// The parts of a qualified name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QualifiedName<'a> {
    /// `vendor/class`.
    pub kind: &'a str,
    pub device: &'a str,
}

/// Splits a name; None if it is not qualified.
pub fn parse(name: &str) -> Option<QualifiedName<'_>> {
    let (kind, device) = name.split_once('=')?;
    let (vendor, class) = kind.split_once('/')?;
    let is_name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    };
    let is_device = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
    };
    (is_name(vendor) && is_name(class) && is_device(device))
        .then_some(QualifiedName { kind, device })
}

/// Returns true if a name is qualified.
pub fn is_qualified(name: &str) -> bool {
    parse(name).is_some()
}

/// Splits devices into those that NVML names, without a kind, and CDI devices with theirs; each once. A name without a
/// kind has `default_kind`; no GPUs are `none`.
pub fn split<'a>(devices: &'a Devices, default_kind: &'a str) -> (Vec<&'a str>, Vec<String>) {
    let names = match devices {
        Devices::None => vec!["none"],
        some => some.names(),
    };
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for name in names {
        let QualifiedName { kind, device } = parse(name).unwrap_or(QualifiedName {
            kind: default_kind,
            device: name,
        });
        if !seen.insert((kind, device)) {
            continue;
        }
        match kind {
            AUTOMATIC => own.push(device),
            kind => others.push(format!("{kind}={device}")),
        }
    }
    (own, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_their_kind() {
        let devices =
            |names: &[&str]| Devices::Names(names.iter().map(|&n| n.to_owned()).collect());
        let of = |devices: &Devices, kind| {
            let (own, others) = split(devices, kind);
            format!("{} and {}", own.join(" "), others.join(" "))
        };
        let mixed = devices(&[
            "1",
            "nvidia.com/gpu=1",
            "a.b/c=d",
            "runtime.nvidia.com/gpu=1",
        ]);
        for (devices, by_nvidia, automatic) in [
            (&Devices::All, " and nvidia.com/gpu=all", "all and "),
            (&Devices::None, " and nvidia.com/gpu=none", "none and "),
            (
                &mixed,
                "1 and nvidia.com/gpu=1 a.b/c=d",
                "1 and nvidia.com/gpu=1 a.b/c=d",
            ),
        ] {
            assert_eq!(of(devices, "nvidia.com/gpu"), by_nvidia);
            assert_eq!(of(devices, AUTOMATIC), automatic);
        }
    }
}
