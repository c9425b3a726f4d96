//! A process's cgroup file, and the device list of a cgroup of version 1: after the missing rules are added, none is
//! missing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::host::DeviceNumber;
use libnvc::testing::{device_cgroup, missing_rule};

const MOUNTINFO: &[u8] =
    b"31 23 0:28 / /two rw - cgroup2 cgroup2 rw\n36 31 0:33 / /one rw - cgroup cgroup rw,devices\n";

// A cgroup file, a zero, a device list.
fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    membership(parts.next().unwrap_or_default());
    let list = String::from_utf8_lossy(parts.next().unwrap_or_default());
    for minor in [0, 1, 255] {
        rules(&list, DeviceNumber { major: 195, minor });
    }
});

fn membership(cgroup: &[u8]) {
    let Ok(found) = device_cgroup(cgroup, MOUNTINFO) else {
        return;
    };
    let climbs = found.directory.components().any(|c| c.as_os_str() == "..");
    assert!(!climbs, "{}", found.directory.display());
    // The group's path is literally on a line of the file.
    let below = found.directory.as_os_str().as_encoded_bytes();
    let below = below
        .strip_prefix(b"/one")
        .or_else(|| below.strip_prefix(b"/two"));
    let below = below.expect("it is below a mount point");
    let path = below.strip_prefix(b"/").unwrap_or(below);
    assert!(path.is_empty() || cgroup.windows(path.len()).any(|part| part == path));
}

/// An exception of a devices.list.
#[derive(Debug, PartialEq, Eq)]
struct Exception {
    kind: String,
    number: String,
    access: String,
}

fn rules(list: &str, device: DeviceNumber) {
    let Some(added) = missing_rule(list, device) else {
        assert!(exceptions(list).any(|e| {
            e.access.contains('r') && e.access.contains('w') && matches!(&*e.kind, "a" | "c")
        }));
        return;
    };
    let added = exceptions(&added).next().expect("it is a rule");
    assert_eq!(added.kind, "c");
    assert_eq!(added.number, device.to_string());
    assert!(matches!(&*added.access, "r" | "w" | "rw"));
    let mut after = list.to_owned();
    after += &format!("\n{} {} {}\n", added.kind, added.number, added.access);
    let after: String = exceptions(&after)
        .map(|e| format!("{} {} {}\n", e.kind, e.number, e.access))
        .collect();
    assert_eq!(missing_rule(&after, device), None, "{after}");
}

/// The list as the kernel keeps it, which merges the exceptions of a device.
fn exceptions(list: &str) -> impl Iterator<Item = Exception> {
    let mut merged: Vec<Exception> = Vec::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [kind, number, access] = words[..] else {
            continue;
        };
        let number = canonical(number);
        let same = |e: &&mut Exception| e.kind == kind && e.number == number;
        match merged.iter_mut().find(same) {
            Some(e) => e.access += access,
            None => merged.push(Exception {
                kind: kind.to_owned(),
                number,
                access: access.to_owned(),
            }),
        }
    }
    merged.into_iter()
}

/// Major and minor number without signs and zeros before them.
fn canonical(number: &str) -> String {
    let part = |text: &str| match text.parse::<u32>() {
        Ok(number) => number.to_string(),
        Err(_) => text.to_owned(),
    };
    match number.split_once(':') {
        Some((major, minor)) => format!("{}:{}", part(major), part(minor)),
        None => number.to_owned(),
    }
}
