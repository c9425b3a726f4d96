//! Mounts a copy over the driver's `params` that tells programs not to create device nodes.
//!
//! The copy is in a tmpfs that is briefly mounted over the directory, made read-only, and detached once a bind mount of
//! its one file is in place: only that mount stays in the container.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::{driver_proc, tmpfs};
use crate::arguments::Given;
use crate::report::Report;
use crate::root::{Root, read};
use crate::{Failure, Result};

const PARAMS: &str = "/proc/driver/nvidia/params";
const ON: &str = "ModifyDeviceFiles: 1";
const OFF: &str = "ModifyDeviceFiles: 0";
const LARGEST: u64 = 1 << 20;

pub(super) fn run(_given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    let Some(text) = wanted()? else {
        report.step("the driver does not let programs create device nodes");
        return Ok(());
    };
    let path = Path::new(PARAMS);
    let missing = || root.failure("open failed", path, Errno::NOENT);
    let target = root.find(path)?.ok_or_else(missing)?;
    let failed = |errno| root.failure("mounting failed", path, errno);
    // Already done by an earlier hook.
    if read(target.as_fd(), LARGEST).is_ok_and(|now| now == text.as_bytes()) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    let below = root.find(directory)?.ok_or_else(missing)?;
    let target = not_a_volumes(root, path, target)?;
    let below = not_a_volumes(root, directory, below)?;
    cover(target.as_fd(), below.as_fd(), text.as_bytes()).map_err(failed)
}

/// Returns the same descriptor, unless its file is on a volume: mounts on a shared one would appear on the host.
fn not_a_volumes(root: &Root, path: &Path, found: OwnedFd) -> Result<OwnedFd> {
    let failed = |errno| root.failure("stat failed", path, errno);
    if driver_proc::is_the_drivers(path, found.as_fd()).map_err(failed)? {
        return Ok(found);
    }
    root.own(path, found)
}

/// Returns the parameters for the container, if they differ from the host's.
fn wanted() -> Result<Option<String>> {
    match std::fs::read(PARAMS) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        host => {
            let host = host.map_err(|error| Failure::of("open failed", PARAMS, error))?;
            Ok(changed(&String::from_utf8_lossy(&host)))
        }
    }
}

/// Returns the text with the line changed. None if it has no such line.
fn changed(text: &str) -> Option<String> {
    if !text.lines().any(|line| line == ON) {
        return None;
    }
    let lines = text.lines().map(|line| if line == ON { OFF } else { line });
    Some(lines.map(|line| format!("{line}\n")).collect())
}

/// Mounts the text over the target; `below` is the target's directory.
fn cover(target: BorrowedFd<'_>, below: BorrowedFd<'_>, text: &[u8]) -> Result<(), Errno> {
    let tmpfs = tmpfs::new(4)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&tmpfs, "params", flags, Mode::from_raw_mode(0o444))?;
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    drop(file);
    tmpfs::confine(below)?;
    tmpfs::confine(target)?;
    // Only an attached mount can be cloned.
    tmpfs::attach(tmpfs.as_fd(), below)?;
    let clone = restrict_and_clone(&tmpfs);
    let detached = tmpfs::detach(&tmpfs);
    let clone = clone?;
    detached?;
    tmpfs::attach(clone.as_fd(), target)
}

fn restrict_and_clone(tmpfs: &OwnedFd) -> Result<OwnedFd, Errno> {
    tmpfs::seal(tmpfs.as_fd())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(tmpfs, "params", flags, Mode::empty())?;
    tmpfs::clone(file.as_fd())
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn only_the_exact_line_counts() {
        assert_eq!(
            changed("A: 1\nModifyDeviceFiles: 1").as_deref(),
            Some("A: 1\nModifyDeviceFiles: 0\n")
        );
        assert_eq!(changed("ModifyDeviceFiles: 10\n"), None);
        assert_eq!(changed("ModifyDeviceFiles: 0\n"), None);
    }
}
