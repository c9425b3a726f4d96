//! Parses a mount table: /proc/PID/mountinfo, see proc_pid_mountinfo(5).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A line of a mount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) struct MountEntry<'a> {
    id: u64,
    device: (u64, u64),
    /// The directory of the filesystem that is mounted.
    pub(in crate::apply) root: &'a [u8],
    /// Mount point, with escapes.
    point: &'a [u8],
    /// Filesystem type.
    pub(in crate::apply) kind: &'a [u8],
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
    pub(in crate::apply) fn point(&self) -> Vec<u8> {
        unescaped(self.point)
    }
}

fn lines(table: &[u8]) -> impl Iterator<Item = MountEntry<'_>> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(MountEntry::parse)
}

/// Returns the line of a mount.
pub(in crate::apply) fn find(table: &[u8], id: u64) -> Option<MountEntry<'_>> {
    lines(table).find(|line| line.id == id)
}

/// Returns true if a filesystem is mounted anywhere except at or below a directory.
pub(in crate::apply) fn shows(table: &[u8], device: (u64, u64), outside: Option<&Path>) -> bool {
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

/// Decodes a name's octal escapes.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).filter(|_| *first == b'\\');
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = others.get(value.map_or(0, |_| 3)..).unwrap_or(&[]);
    }
    bytes
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
    fn file_systems_are_found_outside_a_directory() {
        assert!(shows(TABLE, (254, 0), None));
        assert!(!shows(TABLE, (254, 1), None));
        assert!(shows(TABLE, (0, 5), None));
        assert!(!shows(TABLE, (0, 5), Some(Path::new("/srv/a b"))));
        assert!(shows(TABLE, (0, 5), Some(Path::new("/srv/a"))));
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescaped(b"a\\134b\\04\\"), b"a\\b\\04\\");
        assert_eq!(unescaped(b"\\777"), b"\\777");
    }
}
