//! Parses mount tables: /proc/PID/mountinfo, see proc_pid_mountinfo(5).

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line of a mount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry<'a> {
    id: u64,
    device: (u64, u64),
    /// The directory of the filesystem that is mounted.
    pub(crate) root: &'a [u8],
    /// Mount point, with escapes.
    point: &'a [u8],
    /// Filesystem type.
    pub(crate) kind: &'a [u8],
}

impl<'a> MountEntry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = number(fields.next()?)?;
        let device = fields.nth(1)?;
        let colon = device.iter().position(|byte| *byte == b':')?;
        let (major, minor) = (device.get(..colon)?, device.get(colon + 1..)?);
        let (root, point) = (fields.next()?, fields.next()?);
        // Options, and optional fields up to a dash.
        fields.by_ref().skip(1).find(|field| *field == b"-")?;
        Some(Self {
            id,
            device: (number(major)?, number(minor)?),
            root,
            point,
            kind: fields.next()?,
        })
    }

    /// Returns the mount point.
    pub(crate) fn point(&self) -> Vec<u8> {
        unescape(self.point)
    }
}

fn lines(table: &[u8]) -> impl Iterator<Item = MountEntry<'_>> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(MountEntry::parse)
}

/// Returns the line of a mount.
pub(crate) fn find(table: &[u8], id: u64) -> Option<MountEntry<'_>> {
    lines(table).find(|line| line.id == id)
}

/// Returns the mount points.
pub(crate) fn points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    lines(table).map(|line| PathBuf::from(OsString::from_vec(line.point())))
}

/// Returns true if a filesystem is mounted anywhere except at or below a directory.
pub(crate) fn shows(table: &[u8], device: (u64, u64), outside: Option<&Path>) -> bool {
    let is_below = |line: &MountEntry<'_>| {
        outside.is_some_and(|outside| {
            let point = line.point();
            Path::new(std::ffi::OsStr::from_bytes(&point)).starts_with(outside)
        })
    };
    lines(table).any(|line| line.device == device && !is_below(&line))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns for each mount in a mountinfo: its parent, the filesystem, its root directory, and its own options.
pub(crate) fn marks(mountinfo: &str) -> HashMap<u64, String> {
    let mark = |line: &str| {
        let (id, rest) = line.split_once(' ')?;
        let mut fields = rest.splitn(6, ' ');
        let [above, device, root, _, options] = std::array::from_fn(|_| fields.next());
        let mark = [above?, device?, root?, options?].join(" ");
        Some((id.parse().ok()?, mark))
    };
    mountinfo.lines().filter_map(mark).collect()
}

/// Returns the ids of the shared mounts in a mountinfo: those with an optional field `shared:N`.
pub(crate) fn shared_mounts(mountinfo: &str) -> HashSet<u64> {
    let id = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let mut optional = fields.skip(5).take_while(|field| *field != "-");
        optional
            .any(|field| field.starts_with("shared:"))
            .then_some(id)
    };
    mountinfo.lines().filter_map(id).collect()
}

/// Decodes the escapes in paths, `\` and three octal digits.
pub(crate) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match (first, tail) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        22 21 0:5 / /srv/a\\040b/dev rw master:3 - tmpfs tmpfs rw\n\
        23 21 0:6 /sub /b rw - tmpfs tmpfs rw\n\
        garbage\n24\n\n";

    #[test]
    fn lines_are_found_by_id() {
        let line = find(TABLE, 23).unwrap();
        assert_eq!((line.root, line.kind), (&b"/sub"[..], &b"tmpfs"[..]));
        assert_eq!(find(TABLE, 22).unwrap().point(), b"/srv/a b/dev");
        assert_eq!(find(TABLE, 24), None);
    }

    #[test]
    fn mount_points_are_listed() {
        let points: Vec<_> = points(TABLE).collect();
        assert_eq!(points, ["/", "/srv/a b/dev", "/b"].map(PathBuf::from));
    }

    #[test]
    fn file_systems_are_found_outside_a_directory() {
        assert!(shows(TABLE, (254, 0), None));
        assert!(!shows(TABLE, (254, 1), None));
        assert!(shows(TABLE, (0, 5), None));
        assert!(!shows(TABLE, (0, 5), Some(Path::new("/srv/a b"))));
        assert!(shows(TABLE, (0, 5), Some(Path::new("/srv/a"))));
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(b"a\\134b\\04\\"), b"a\\b\\04\\");
        assert_eq!(unescape(b"\\777"), b"\\777");
    }

    #[test]
    fn shared_mounts_are_found() {
        let text = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    22 21 0:5 / /a\\040shared:7 rw master:3 - tmpfs tmpfs rw,shared:9\n\
                    23 21 0:6 / /b rw master:3 shared:4 - tmpfs tmpfs rw\n\
                    garbage\n24\n";
        assert_eq!(shared_mounts(text), HashSet::from([21, 23]));
    }

    #[test]
    fn mounts_are_told_apart_without_their_places() {
        let of = |place: &str, options: &str| {
            let line = format!("21 1 254:0 /a {place} {options} shared:1 - ext4 /dev/vda rw\n");
            marks(&line).remove(&21)
        };
        assert_eq!(of("/x", "ro"), Some("1 254:0 /a ro".to_owned()));
        assert_eq!(of("/x", "ro"), of("/y", "ro"));
        assert_ne!(of("/x", "ro"), of("/x", "rw"));
        assert!(marks("garbage\n24\n24 1 254:0 /\n").is_empty());
    }
}
