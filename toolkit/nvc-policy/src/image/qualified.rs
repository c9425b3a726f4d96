//! Recognises fully qualified CDI device names: `vendor/class=device`.

use indexmap::IndexSet;

use super::Devices;

/// The kind of devices with a generated specification, whose names are NVML's.
pub const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

/// The parts of a qualified name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qualified<'a> {
    /// `vendor/class`.
    pub kind: &'a str,
    /// The device.
    pub device: &'a str,
}

/// Splits a name; None if it is not qualified.
pub fn parse(name: &str) -> Option<Qualified<'_>> {
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
    (is_name(vendor) && is_name(class) && is_device(device)).then_some(Qualified { kind, device })
}

/// Returns true if a name is qualified.
pub fn is_qualified(name: &str) -> bool {
    parse(name).is_some()
}

/// Returns every name with its kind, without duplicates; a name without one gets `default_kind`.
pub fn names(devices: &Devices, default_kind: &str) -> Vec<String> {
    let names = match devices {
        Devices::None => vec!["none"],
        some => some.names(),
    };
    let qualified = names.into_iter().map(|name| match is_qualified(name) {
        true => name.to_owned(),
        false => format!("{default_kind}={name}"),
    });
    qualified.collect::<IndexSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_their_kind() {
        let devices =
            |names: &[&str]| Devices::Names(names.iter().map(|&n| n.to_owned()).collect());
        let of = |devices: &Devices| names(devices, "nvidia.com/gpu").join(" ");
        assert_eq!(of(&Devices::All), "nvidia.com/gpu=all");
        assert_eq!(of(&Devices::None), "nvidia.com/gpu=none");
        assert_eq!(
            of(&devices(&["1", "nvidia.com/gpu=1", "a.b/c=d"])),
            "nvidia.com/gpu=1 a.b/c=d"
        );
    }
}
