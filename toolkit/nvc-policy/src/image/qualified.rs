//! Tells apart the devices that NVML names and those of CDI.

use std::collections::HashSet;

use nvc_cdi::names::parse;

use super::Devices;

/// The kind of devices with a generated specification, whose names are NVML's.
pub const AUTOMATIC: &str = "runtime.nvidia.com/gpu";

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
        let (kind, device) = match parse(name) {
            Some(name) => (name.kind, name.device),
            None => (default_kind, name),
        };
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
