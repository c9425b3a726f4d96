//! Adds rules to a cgroup of the `devices` hierarchy, by writing lines to its files.
//!
//! The group's list is read first, to find the missing rules. In a group that allows everything, undoing an added rule
//! would *deny* the device, and in one that allows reading, undoing "read and write" would deny both.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::apply::cgroup::message::explain;
use crate::error::{Error, Result, errno_of};
use crate::host::DeviceNumber;
use crate::read_file;

/// Adds the missing lines, and returns them.
pub(in crate::apply) fn allow(
    cgroup: BorrowedFd<'_>,
    devices: &[DeviceNumber],
    name: &Path,
) -> Result<Vec<String>> {
    let mut added = Vec::new();
    let present = Present::parse(&read(cgroup, name)?);
    let missing: Vec<_> = devices
        .iter()
        .filter_map(|device| present.missing(*device))
        .collect();
    if missing.is_empty() {
        return Ok(added);
    }
    let mut file = open(cgroup, "devices.allow", OFlag::O_WRONLY, name)?;
    for line in missing {
        match write(&mut file, &line, "devices.allow", name) {
            Ok(()) => added.push(line),
            Err(error) => return Err(error.with_cleanup(undo(cgroup, &added, name))),
        }
    }
    Ok(added)
}

/// Returns true if a rule for a device is missing; false if the list cannot be read.
pub(in crate::apply) fn may_deny(
    cgroup: BorrowedFd<'_>,
    devices: &[DeviceNumber],
    name: &Path,
) -> bool {
    read(cgroup, name).is_ok_and(|list| {
        let present = Present::parse(&list);
        devices
            .iter()
            .any(|device| present.missing(*device).is_some())
    })
}

/// Removes added lines; returns the failures.
pub(in crate::apply) fn undo(cgroup: BorrowedFd<'_>, added: &[String], name: &Path) -> Vec<Error> {
    if added.is_empty() {
        return Vec::new();
    }
    match open(cgroup, "devices.deny", OFlag::O_WRONLY, name) {
        Err(error) => vec![error],
        Ok(mut file) => (added.iter().rev())
            .filter_map(|line| write(&mut file, line, "devices.deny", name).err())
            .collect(),
    }
}

/// The rules of a group's list that apply to character devices.
#[derive(Default)]
pub(crate) struct Present {
    /// Numbers, `None` for all, that can be both read and written.
    full: HashSet<(Option<u32>, Option<u32>)>,
    /// Devices whose own lines allow only reading or only writing.
    half: HashMap<DeviceNumber, (bool, bool)>,
}

impl Present {
    pub(crate) fn parse(list: &str) -> Self {
        let mut present = Self::default();
        for line in list.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(kind @ ("a" | "c")), Some(number), Some(access), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Some((major, minor)) = number.split_once(':') else {
                continue;
            };
            let (Some(major), Some(minor)) = (part(major), part(minor)) else {
                continue;
            };
            let (read, write) = (access.contains('r'), access.contains('w'));
            if read && write {
                present.full.insert((major, minor));
            } else if let ("c", Some(major), Some(minor)) = (kind, major, minor) {
                let half = present.half.entry(DeviceNumber { major, minor });
                let (reads, writes) = half.or_default();
                *reads |= read;
                *writes |= write;
            }
        }
        present
    }

    /// Returns the line to add so that the device can be read and written; `None` if it already can.
    ///
    /// One exception must cover the whole access: one for reading and another for writing do not allow opening for
    /// both. The access is added to that of the device's own line.
    pub(crate) fn missing(&self, device: DeviceNumber) -> Option<String> {
        let DeviceNumber { major, minor } = device;
        let majors = [None, Some(major)];
        let mut ways = majors.iter().flat_map(|m| [(*m, None), (*m, Some(minor))]);
        if ways.any(|way| self.full.contains(&way)) {
            return None;
        }
        let access = match self.half.get(&device) {
            Some((true, _)) => "w",
            Some((_, true)) => "r",
            _ => "rw",
        };
        Some(format!("c {major}:{minor} {access}"))
    }
}

/// Parses a number, or `None` for all of them.
fn part(text: &str) -> Option<Option<u32>> {
    match text {
        "*" => Some(None),
        _ => text.parse().ok().map(Some),
    }
}

fn read(cgroup: BorrowedFd<'_>, name: &Path) -> Result<String> {
    let file = open(cgroup, "devices.list", OFlag::O_RDONLY, name)?;
    let bytes =
        read_file::read_all(file).map_err(|errno| failure("read", "devices.list", name, errno))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn open(cgroup: BorrowedFd<'_>, file: &str, access: OFlag, name: &Path) -> Result<File> {
    openat(
        cgroup,
        file,
        access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .map(File::from)
    .map_err(|e| failure("open", file, name, e))
}

/// Writes a rule; the kernel accepts one per write.
fn write(file: &mut File, line: &str, file_name: &str, name: &Path) -> Result<()> {
    file.write_all(line.as_bytes())
        .map_err(|e| failure("write", file_name, name, errno_of(&e)))
}

fn failure(operation: &str, file: &str, name: &Path, errno: Errno) -> Error {
    let path = name.join(file);
    let operation = format!("{operation} {}", path.display());
    explain(Error::system(operation, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_rules() {
        let device = DeviceNumber {
            major: 195,
            minor: 255,
        };
        for (list, expected) in [
            ("", Some("c 195:255 rw")),
            ("a *:* rwm\n", None),
            ("c 195:* rwm\n", None),
            ("c *:255 rw\n", None),
            ("c *:* rw\n", None),
            ("c 1:3 rwm\nc 195:255 rw\n", None),
            (
                "b 195:255 rwm\nc 195:25 rwm\nc 19:255 rwm\n",
                Some("c 195:255 rw"),
            ),
            ("b *:* rwm\nc *:* m\n", Some("c 195:255 rw")),
            ("c 195:255 r\n", Some("c 195:255 w")),
            ("c 195:255 wm\n", Some("c 195:255 r")),
            // Neither of these alone allows opening for both, and the undo must not remove the wildcard's access.
            ("c 195:* r\nc 195:255 w\n", Some("c 195:255 r")),
            ("c 195:* r\n", Some("c 195:255 rw")),
            (
                "c 195:255\nc\n\nc 195 rw\nc 195:255 rw more\n",
                Some("c 195:255 rw"),
            ),
        ] {
            let missing = Present::parse(list).missing(device);
            assert_eq!(missing.as_deref(), expected, "{list:?}");
        }
    }
}
