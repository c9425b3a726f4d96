//! Parses mount tables: /proc/PID/mountinfo, see proc_pid_mountinfo(5).

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of a mount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry<'a> {
    id: u64,
    parent: u64,
    device: (u64, u64),
    /// The directory of the filesystem that is mounted, with escapes.
    pub(crate) root: &'a [u8],
    /// Mount point, with escapes.
    point: &'a [u8],
    /// The mount's own options.
    options: &'a [u8],
    /// Its peer group, `shared:N`, and the group that it receives mounts from, `master:N`.
    group: Option<u64>,
    master: Option<u64>,
    /// Filesystem type.
    pub(crate) kind: &'a [u8],
    /// The filesystem's options.
    pub(crate) super_options: &'a [u8],
}

impl<'a> MountEntry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
        let device = fields.next()?;
        let colon = device.iter().position(|byte| *byte == b':')?;
        let (major, minor) = (device.get(..colon)?, device.get(colon + 1..)?);
        let (root, point, options) = (fields.next()?, fields.next()?, fields.next()?);
        let (mut group, mut master) = (None, None);
        // The number of optional fields varies; a dash ends them.
        fields
            .by_ref()
            .inspect(|field| {
                group = group.or(field.strip_prefix(b"shared:").and_then(number));
                master = master.or(field.strip_prefix(b"master:").and_then(number));
            })
            .find(|field| *field == b"-")?;
        let kind = fields.next()?;
        Some(Self {
            id,
            parent,
            device: (number(major)?, number(minor)?),
            root,
            point,
            options,
            group,
            master,
            kind,
            super_options: fields.nth(1)?,
        })
    }

    /// Returns the mount point.
    pub(crate) fn point(&self) -> PathBuf {
        unescape(self.point)
    }
}

/// Returns the lines of a mount table.
pub(crate) fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry<'_>> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(MountEntry::parse)
}

/// Returns the line of a mount.
pub(crate) fn find(table: &[u8], id: u64) -> Option<MountEntry<'_>> {
    entries(table).find(|line| line.id == id)
}

/// Returns the type of the filesystem that a path is on, without touching the path, because the server of a network
/// filesystem may not respond.
pub fn filesystem_at<'t>(table: &'t [u8], path: &Path) -> Option<&'t [u8]> {
    let above = entries(table).map(|line| (line.point(), line.kind));
    let above = above.filter(|(point, _)| path.starts_with(point));
    // Of several mounts on one mount point, the last one is visible.
    let top = above.max_by_key(|(point, _)| point.as_os_str().len());
    top.map(|(_, kind)| kind)
}

/// Returns true if a filesystem is mounted anywhere except at or below a directory.
pub(crate) fn shows(table: &[u8], device: (u64, u64), outside: Option<&Path>) -> bool {
    let is_below =
        |line: &MountEntry<'_>| outside.is_some_and(|outside| line.point().starts_with(outside));
    entries(table).any(|line| line.device == device && !is_below(&line))
}

/// Returns true if another mount lies over a mount, or over the place of one that it is on.
fn is_hidden(line: &MountEntry<'_>, lines: &[MountEntry<'_>]) -> bool {
    let point = line.point();
    let mut above = vec![line.parent];
    while let Some(parent) = lines.iter().find(|other| Some(&other.id) == above.last())
        && !above.contains(&parent.parent)
    {
        above.push(parent.parent);
    }
    lines.iter().any(|other| {
        let place = other.point();
        let is_way = above.contains(&other.id) || other.id == line.id;
        other.parent == line.id && place == point
            || !is_way
                && above.contains(&other.parent)
                && place != point
                && point.starts_with(place)
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns for each mount: its parent, the filesystem, its root directory, and its own options.
pub(crate) fn marks(table: &[u8]) -> HashMap<u64, String> {
    let mark = |line: MountEntry<'_>| {
        let (root, options) = (line.root.escape_ascii(), line.options.escape_ascii());
        let (parent, (major, minor)) = (line.parent, line.device);
        (
            line.id,
            format!("{parent} {major}:{minor} {root} {options}"),
        )
    };
    entries(table).map(mark).collect()
}

/// Returns the ids of the shared mounts.
pub(crate) fn shared_mounts(table: &[u8]) -> HashSet<u64> {
    let shared = entries(table).filter(|line| line.group.is_some());
    shared.map(|line| line.id).collect()
}

/// Returns the mount points at or below a directory on which a new mount would appear outside it too, because another
/// mount there receives it; without those below one of them.
pub(crate) fn leaking(table: &[u8], directory: &Path) -> Vec<PathBuf> {
    let lines: Vec<MountEntry<'_>> = entries(table).collect();
    let leaks = |line: &MountEntry<'_>| {
        let mut groups: HashSet<u64> = line.group.into_iter().collect();
        let is_of = |groups: &HashSet<u64>, group: Option<u64>| {
            group.is_some_and(|group| groups.contains(&group))
        };
        loop {
            let slaves = lines.iter().filter(|slave| is_of(&groups, slave.master));
            let further: Vec<u64> = slaves.filter_map(|slave| slave.group).collect();
            let known = groups.len();
            groups.extend(further);
            if groups.len() == known {
                break;
            }
        }
        let receives =
            |other: &MountEntry<'_>| is_of(&groups, other.group) || is_of(&groups, other.master);
        let receivers = lines
            .iter()
            .filter(|other| other.id != line.id && receives(other));
        let shown = unescape(line.root);
        let mut places = receivers.filter_map(|other| {
            let root = unescape(other.root);
            match shown.strip_prefix(&root) {
                Ok(rest) => Some(other.point().join(rest)),
                Err(_) => root.starts_with(&shown).then(|| other.point()),
            }
        });
        places.any(|place| !place.starts_with(directory))
    };
    let within = lines
        .iter()
        .filter(|line| line.group.is_some() && line.point().starts_with(directory) && leaks(line));
    let visible = within.filter(|line| !is_hidden(line, &lines));
    let mut points: Vec<PathBuf> = visible.map(MountEntry::point).collect();
    points.sort();
    points.dedup_by(|below, above| below.starts_with(above));
    points
}

/// Decodes the escapes in paths, `\` and three octal digits.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
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
    OsString::from_vec(out).into()
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
        assert_eq!(find(TABLE, 22).unwrap().point(), Path::new("/srv/a b/dev"));
        assert_eq!(find(TABLE, 24), None);
    }

    #[test]
    fn mount_points_are_listed() {
        let points: Vec<_> = entries(TABLE).map(|line| line.point()).collect();
        assert_eq!(points, ["/", "/srv/a b/dev", "/b"].map(PathBuf::from));
    }

    #[test]
    fn the_topmost_mount_has_the_filesystem_of_a_path() {
        let table = b"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:1 / /ho\\040me rw shared:1 - nfs4 s:/home rw\n\
            3 2 0:2 / /ho\\040me/local rw - xfs /dev/b rw\n4 1 0:3 / /mnt rw - nfs a rw\n\
            5 4 0:4 / /mnt rw - tmpfs - rw\n";
        for (path, kind) in [
            ("/ho me/ana", "nfs4"),
            ("/ho me/local/bo", "xfs"),
            ("/ho mes/ana", "ext4"),
            ("/mnt", "tmpfs"),
        ] {
            let found = filesystem_at(table, Path::new(path));
            assert_eq!(found, Some(kind.as_bytes()), "{path}");
        }
        assert_eq!(filesystem_at(b"", Path::new("/")), None);
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
        assert_eq!(unescape(b"a\\134b\\04\\"), Path::new("a\\b\\04\\"));
        assert_eq!(unescape(b"\\777"), Path::new("\\777"));
    }

    #[test]
    fn shared_mounts_are_found() {
        let text = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    22 21 0:5 / /a\\040shared:7 rw master:3 - tmpfs tmpfs rw,shared:9\n\
                    23 21 0:6 / /b rw master:3 shared:4 - tmpfs tmpfs rw\n\
                    garbage\n24\n";
        assert_eq!(shared_mounts(text.as_bytes()), HashSet::from([21, 23]));
    }

    #[test]
    fn mounts_that_appear_elsewhere_too_are_found() {
        let of = |lines: &str| {
            let table = format!("21 1 8:1 / / rw shared:1 - ext4 /dev/a rw\n{lines}");
            leaking(table.as_bytes(), Path::new("/j"))
        };
        let dev = "22 21 0:5 / /dev rw shared:2 - devtmpfs dev rw\n23 22 0:6 / /dev/pts rw shared:3 - devpts pts rw\n";
        let bound = |of_dev: &str| {
            format!(
                "{dev}24 21 0:5 / /j/dev rw {of_dev} - devtmpfs dev rw\n25 24 0:6 / /j/dev/pts rw shared:3 - devpts pts rw\n"
            )
        };
        assert_eq!(of(&bound("shared:2")), ["/j/dev"].map(PathBuf::from));
        assert_eq!(of(&bound("master:2")), ["/j/dev/pts"].map(PathBuf::from));
        assert_eq!(of(dev), [""; 0].map(PathBuf::from));
        // Bound to itself, or shared with a part of itself: what appears elsewhere is below the directory.
        for line in [
            "/j /j rw shared:1",
            "/j /j/again rw shared:1",
            "/x /j rw shared:7",
        ] {
            assert_eq!(
                of(&format!("22 21 8:1 {line} - ext4 /dev/a rw\n")),
                [""; 0].map(PathBuf::from),
                "{line}"
            );
        }
        // The host's peer of the directory has the same mount below it, hidden.
        let hidden = "22 21 8:1 /j /j rw shared:1 - ext4 /dev/a rw\n23 21 0:5 / /j/dev rw shared:2 - devtmpfs dev rw\n\
            24 22 0:5 / /j/dev rw master:2 - devtmpfs dev rw\n25 21 0:5 / /dev rw shared:2 - devtmpfs dev rw\n";
        assert_eq!(of(hidden), [""; 0].map(PathBuf::from));
        // Its peer has a part of it, or receives it from a slave of a slave.
        for lines in [
            "22 21 8:2 / /j rw shared:7 - xfs b rw\n23 21 8:2 /usr /a\\040b rw shared:7 - xfs b rw\n",
            "22 21 8:2 / /j rw shared:7 - xfs b rw\n23 22 8:2 / /j/b rw shared:8 master:7 - xfs b rw\n\
             24 21 8:2 / /c rw master:8 - xfs b rw\n",
        ] {
            assert_eq!(of(lines), ["/j"].map(PathBuf::from), "{lines}");
        }
    }

    #[test]
    fn mounts_are_told_apart_without_their_places() {
        let of = |place: &str, options: &str| {
            let line = format!("21 1 254:0 /a {place} {options} shared:1 - ext4 /dev/vda rw\n");
            marks(line.as_bytes()).remove(&21)
        };
        assert_eq!(of("/x", "ro"), Some("1 254:0 /a ro".to_owned()));
        assert_eq!(of("/x", "ro"), of("/y", "ro"));
        assert_ne!(of("/x", "ro"), of("/x", "rw"));
        assert!(marks(b"garbage\n24\n24 1 254:0 /\n").is_empty());
    }
}
