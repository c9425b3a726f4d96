//! Distinguishes volumes from the container's own files: nothing is created on a volume, which belongs to the host or
//! to others.
//!
//! The image's links choose where a hook writes. The container's own filesystems are the root's mount, and a tmpfs that
//! the runtime mounted at /dev, /run or /tmp for this container alone. That also holds in a user namespace: a hook has
//! all capabilities of that namespace, the container's process may have none.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{fstat, fstatfs, major, minor};
use rustix::io::Errno;

/// The mount table.
pub(crate) const MOUNTS: &str = "/proc/self/mountinfo";

const TMPFS_MAGIC: u64 = 0x0102_1994;
const OWN: [&str; 3] = ["dev", "run", "tmp"];

/// Returns true if files may be created in a directory below a root.
pub(crate) fn is_own(
    root: BorrowedFd<'_>,
    path: &Path,
    directory: BorrowedFd<'_>,
) -> Result<bool, Errno> {
    let of_root = mount_id(root)?;
    let of_directory = mount_id(directory)?;
    if of_root == of_directory {
        return Ok(true);
    }
    is_on_private_tmpfs(path, directory)
}

/// Returns true if a directory below a root is on a tmpfs that the runtime mounted for this container alone.
pub(crate) fn is_on_private_tmpfs(root: &Path, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let is_tmpfs = u64::try_from(fstatfs(directory)?.f_type) == Ok(TMPFS_MAGIC);
    if !is_tmpfs {
        return Ok(false);
    }
    let device = fstat(directory)?.st_dev;
    let device = format!("{}:{}", major(device), minor(device));
    let table = libnvc::read_kernel_file(MOUNTS).unwrap_or_default();
    Ok(is_private(
        &String::from_utf8_lossy(&table),
        root,
        &device,
        mount_id(directory)?,
    ))
}

/// Returns true if a tmpfs is mounted from its root, at a usual place, and is not mounted outside the container's root.
fn is_private(table: &str, root: &Path, device: &str, id: u64) -> bool {
    let mut is_usual = false;
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').take(5).collect();
        let [number, _, of, top, point] = fields.as_slice() else {
            continue;
        };
        if *of != device {
            continue;
        }
        let Ok(below) = Path::new(point).strip_prefix(root) else {
            return false;
        };
        let is_this = number.parse() == Ok(id);
        is_usual |= is_this && *top == "/" && OWN.iter().any(|own| below.starts_with(own));
    }
    is_usual
}

/// Returns the mount id.
pub(crate) fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    libnvc::mount_id(fd).map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "20 1 8:1 / / rw - ext4 x rw\n30 20 0:40 / /b/rootfs/dev rw - tmpfs t rw\n\
        31 20 0:41 / /b/rootfs/dev/shm rw - tmpfs t rw\n32 20 0:41 / /var/lib/pod rw - tmpfs t rw\n\
        33 20 0:42 /sub /b/rootfs/run rw - tmpfs t rw\n34 20 0:43 / /b/rootfs/data rw - tmpfs t rw\n";

    #[test]
    fn only_a_tmpfs_for_this_container_is_its_own() {
        let is = |device, id| is_private(TABLE, Path::new("/b/rootfs"), device, id);
        assert!(is("0:40", 30));
        assert!(!is("0:41", 31), "another container has it too");
        assert!(!is("0:42", 33), "a part of a tmpfs");
        assert!(!is("0:43", 34), "a volume");
    }
}
