//! A mountinfo: any bytes are survived, and text that a kernel could write is parsed correctly.
#![no_main]

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use libnvc::testing::{device_cgroup, shared_mounts};

/// A kernel's view of a process.
#[derive(Debug, Arbitrary)]
struct Process {
    unified: bool,
    path: Vec<Name>,
    mounts: Vec<Mount>,
}

/// A component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Arbitrary)]
enum Name {
    A,
    Blank,
    Backslash,
    Tab,
    Newline,
    HighBytes,
    Devices,
    Digits,
}

impl Name {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::A => b"a",
            Self::Blank => b"x y",
            Self::Backslash => b"x\\040",
            Self::Tab => b"\ty",
            Self::Newline => b"\n",
            Self::HighBytes => b"\xff\xc3",
            Self::Devices => b"devices",
            Self::Digits => b"0134",
        }
    }
}

#[derive(Debug, Arbitrary)]
struct Mount {
    root: Vec<Name>,
    climbs: bool,
    point: Vec<Name>,
    kind: Kind,
    shared: Option<u8>,
    master: Option<u8>,
    devices: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Arbitrary)]
enum Kind {
    Cgroup,
    Cgroup2,
    Tmpfs,
    Odd,
}

// The first byte selects whether the others are a literal mountinfo, or choices for one.
fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((b'!', choices)) => {
            if let Ok(process) = Process::arbitrary_take_rest(Unstructured::new(choices)) {
                understood(&process);
            }
        }
        _ => survived(bytes),
    }
});

fn survived(mountinfo: &[u8]) {
    for cgroup in [&b"0::/a\n"[..], b"3:devices:/a\n"] {
        if let Ok(found) = device_cgroup(cgroup, mountinfo) {
            assert!(!found.directory.as_os_str().is_empty());
        }
    }
    shared_mounts(mountinfo);
}

fn understood(process: &Process) {
    let Process {
        unified,
        path,
        mounts,
    } = process;
    // /proc/PID/cgroup escapes newlines only, so a name with one is ambiguous.
    if path.contains(&Name::Newline) {
        return;
    }
    let path = joined(path);
    let mut cgroup = match unified {
        true => b"0::".to_vec(),
        false => b"7:memory:/m\n3:devices:".to_vec(),
    };
    cgroup.extend(&path);
    cgroup.push(b'\n');
    let text: Vec<u8> = (1..)
        .zip(mounts)
        .flat_map(|(id, mount)| mount.line(id))
        .collect();

    let expected = mounts.iter().find_map(|mount| mount.leads(*unified, &path));
    let found = device_cgroup(&cgroup, &text);
    let found = found.ok().map(|found| found.directory);
    assert_eq!(found, expected, "{}", String::from_utf8_lossy(&text));

    let shared: HashSet<u64> = (1..)
        .zip(mounts)
        .filter(|(_, mount)| mount.shared.is_some())
        .map(|(id, _)| id)
        .collect();
    assert_eq!(shared_mounts(&text), shared);
}

impl Mount {
    /// As the kernel writes it.
    fn line(&self, id: u64) -> Vec<u8> {
        let mut line = format!("{id} 1 0:{id} ").into_bytes();
        line.extend(escaped(&self.root()));
        line.push(b' ');
        line.extend(escaped(&joined(&self.point)));
        line.extend(b" rw,nosuid");
        for (name, group) in [("shared", self.shared), ("master", self.master)] {
            if let Some(group) = group {
                line.extend(format!(" {name}:{group}").bytes());
            }
        }
        let kind = match self.kind {
            Kind::Cgroup => "cgroup cgroup",
            Kind::Cgroup2 => "cgroup2 cgroup2",
            Kind::Tmpfs => "tmpfs shared:1",
            Kind::Odd => "cgroup3 -",
        };
        line.extend(format!(" - {kind} rw").bytes());
        if self.devices {
            line.extend(b",devices");
        }
        line.push(b'\n');
        line
    }

    fn root(&self) -> Vec<u8> {
        let mut root = joined(&self.root);
        if self.climbs {
            root.splice(0..0, *b"/..");
        }
        root
    }

    /// The cgroup's directory below this mount.
    fn leads(&self, unified: bool, path: &[u8]) -> Option<PathBuf> {
        let point = joined(&self.point);
        let holds_devices = match (unified, self.kind) {
            (true, Kind::Cgroup2) => true,
            (false, Kind::Cgroup) => self.devices || point.ends_with(b"/devices"),
            _ => false,
        };
        if !holds_devices || self.climbs {
            return None;
        }
        let root = self.root();
        let below = match root.as_slice() {
            b"/" => path,
            root => path.strip_prefix(root)?,
        };
        if !below.is_empty() && !below.starts_with(b"/") {
            return None;
        }
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let mut directory = PathBuf::from(OsStr::from_bytes(&point));
        if !below.is_empty() {
            directory.push(OsStr::from_bytes(below));
        }
        Some(directory)
    }
}

fn joined(names: &[Name]) -> Vec<u8> {
    if names.is_empty() {
        return b"/".to_vec();
    }
    names
        .iter()
        .flat_map(|name| [b"/", name.bytes()].concat())
        .collect()
}

/// The kernel's `mangle`: blanks, tabs, newlines and backslashes.
fn escaped(path: &[u8]) -> Vec<u8> {
    path.iter()
        .flat_map(|byte| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            byte => vec![*byte],
        })
        .collect()
}
