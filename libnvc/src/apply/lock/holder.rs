//! Determines whether the holder of a file's lock can be a configuration of a container.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use nix::sys::stat::{major, minor};

use crate::inroot;
use crate::read_file;
use crate::sys::capabilities::{SYS_ADMIN, Set, only};

/// Size limit of the kernel's list, which has a line for each lock on the machine.
const MAX_BYTES: u64 = 16 << 20;

/// Returns true if the file is locked by a process that could configure containers: one in the caller's user namespace
/// that may enter namespaces and mount. Also returns true if that cannot be determined.
///
/// The process that took the lock may have ended and passed the open file to another. A process outside the caller's
/// pid namespace is not listed, but a configuration from there uses another procfs.
pub(super) fn may_configure(file: impl AsFd) -> bool {
    let Ok(stat) = inroot::stat(file.as_fd()) else {
        return true;
    };
    let Some(locks) = text_of("/proc/locks") else {
        return true;
    };
    let (major, minor) = (major(stat.st_dev), minor(stat.st_dev));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    holder(&locks, &file).is_some_and(|pid| is_privileged(pid) && is_of_our_users(pid))
}

/// Returns the process that took the lock of a file (`major:minor:inode`), from the text of /proc/locks.
fn holder(locks: &str, file: &str) -> Option<u32> {
    let holder = |line: &str| {
        // "1: FLOCK  ADVISORY  WRITE 4711 00:17:4026 0 EOF"; a waiting process has an arrow before the type.
        let mut fields = line.split_ascii_whitespace().skip(1);
        let [kind, _, _, pid, of] = std::array::from_fn(|_| fields.next());
        (kind? == "FLOCK" && of? == file).then(|| pid?.parse().ok())?
    };
    locks.lines().find_map(holder)
}

fn is_privileged(pid: u32) -> bool {
    let status = text_of(&format!("/proc/{pid}/status")).unwrap_or_default();
    permitted(&status).is_some_and(|permitted| permitted & only(SYS_ADMIN) != 0)
}

fn permitted(status: &str) -> Option<Set> {
    Set::from_str_radix(read_file::line_of(status.as_bytes(), b"CapPrm:")?, 16).ok()
}

fn is_of_our_users(pid: u32) -> bool {
    let namespace = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/ns/user"));
        found.map(|found| (found.dev(), found.ino())).ok()
    };
    namespace(&pid.to_string()).is_some_and(|theirs| namespace("self") == Some(theirs))
}

fn text_of(path: &str) -> Option<String> {
    let bytes = read_file::read(File::open(path).ok()?, MAX_BYTES).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sys::files::try_lock;

    #[test]
    fn the_holder_is_who_took_the_lock() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 00:17:99 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 34 00:17:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 56 00:17:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 78 00:17:100 0 EOF\n\
                     garbage\n\n";
        assert_eq!(holder(locks, "00:17:99"), Some(34));
        assert_eq!(holder(locks, "00:17:100"), Some(78));
        assert_eq!(holder(locks, "00:18:99"), None);
    }

    #[test]
    fn the_kernel_says_the_same() {
        let file = tempfile::tempfile().unwrap();
        assert!(!may_configure(&file));
        try_lock(&file).unwrap();
        let us = text_of("/proc/self/status").unwrap();
        let is_privileged = permitted(&us).unwrap() & only(SYS_ADMIN) != 0;
        assert_eq!(may_configure(&file), is_privileged);
    }
}
