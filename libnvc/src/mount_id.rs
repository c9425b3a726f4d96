//! Identifies the mount that a descriptor is on.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::sys::mount;
use crate::{inroot, read_file};

/// Returns the id of the mount that a descriptor is on, as in the caller's mountinfo.
///
/// # Errors
/// `ENOSYS` if the kernel does not tell: before Linux 5.8 without a /proc.
pub fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    match mount::place(fd)?.id {
        Some(id) => Ok(id),
        None => from_fdinfo(fd, inroot::own_descriptors()?.as_fd()),
    }
}

/// Does the same for a thread that may be in the container; `descriptors` is its `/proc/thread-self/fd`.
pub(crate) fn mount_id_by(fd: BorrowedFd<'_>, descriptors: BorrowedFd<'_>) -> Result<u64, Errno> {
    match mount::place(fd)?.id {
        Some(id) => Ok(id),
        None => from_fdinfo(fd, descriptors),
    }
}

/// Opens a file beside a thread's `fd` directory in /proc.
pub(crate) fn open_sibling(descriptors: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let name = format!("../{name}");
    openat(descriptors, name.as_str(), flags, Mode::empty())
}

/// Returns the mount table of this thread's namespace.
pub(crate) fn mount_table(descriptors: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let table = open_sibling(descriptors, "mountinfo")?;
    read_file::read_all(File::from(table))
}

/// Reads the id from `fdinfo`: before Linux 5.8, statx(2) does not report it.
fn from_fdinfo(fd: BorrowedFd<'_>, descriptors: BorrowedFd<'_>) -> Result<u64, Errno> {
    let info = open_sibling(descriptors, &format!("fdinfo/{}", fd.as_raw_fd()))?;
    let info = read_file::read_all(File::from(info))?;
    let mut lines = info.split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| {
        let text = std::str::from_utf8(line.strip_prefix(b"mnt_id:")?);
        text.ok()?.trim().parse().ok()
    });
    id.ok_or(Errno::ENOSYS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_sources_agree() {
        let descriptors = inroot::own_descriptors().unwrap();
        for path in ["/", "/proc", "/dev/null"] {
            let file = File::open(path).unwrap();
            let (fd, by) = (file.as_fd(), descriptors.as_fd());
            assert_eq!(mount_id(fd), from_fdinfo(fd, by), "{path}");
            assert_eq!(mount_id(fd), mount_id_by(fd, by), "{path}");
        }
    }
}
