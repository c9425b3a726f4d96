//! Lists a directory without the allocations and calls of opendir(3), and opens its entries.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use rustix::fs::{FileType, RawDir};

/// A directory entry: name and file type (`DT_*`), if the filesystem reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) kind: u8,
}

/// Calls `each` with every entry from the descriptor's position on, including `.` and `..`.
///
/// `most` is decremented for each name; `ENOBUFS` if it is exhausted, because a directory can have millions of names.
pub(crate) fn list(
    directory: BorrowedFd<'_>,
    most: &mut usize,
    mut each: impl FnMut(Entry<'_>),
) -> Result<(), Errno> {
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
        *most = most.checked_sub(1).ok_or(Errno::ENOBUFS)?;
        each(Entry {
            name: OsStr::from_bytes(entry.file_name().to_bytes()),
            kind: kind(entry.file_type()),
        });
    }
    Ok(())
}

/// Opens an entry of a directory by reference; a link itself, not its target.
pub(crate) fn open_child(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

/// Returns the kernel's number of a file type.
fn kind(file: FileType) -> u8 {
    match file {
        FileType::RegularFile => libc::DT_REG,
        FileType::Directory => libc::DT_DIR,
        FileType::Symlink => libc::DT_LNK,
        FileType::Fifo => libc::DT_FIFO,
        FileType::Socket => libc::DT_SOCK,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::Unknown => libc::DT_UNKNOWN,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::os::fd::AsFd;

    #[test]
    fn lists_names_and_types() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        for number in 0..2000 {
            std::fs::write(
                dir.path()
                    .join(format!("a file with a longer name {number}")),
                "",
            )
            .unwrap();
        }
        let file = std::fs::File::open(dir.path()).unwrap();
        let mut found: BTreeMap<OsString, u8> = BTreeMap::new();
        let mut most = 2004;
        list(file.as_fd(), &mut most, |entry| {
            assert_eq!(found.insert(entry.name.to_owned(), entry.kind), None);
        })
        .unwrap();
        assert_eq!((found.len(), most), (2004, 0));
        assert_eq!(found[OsStr::new("link")], libc::DT_LNK);
        assert_eq!(found[OsStr::new("directory")], libc::DT_DIR);
        assert_eq!(
            found[OsStr::new("a file with a longer name 7")],
            libc::DT_REG
        );
    }

    #[test]
    fn a_list_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let file = std::fs::File::open(dir.path()).unwrap();
        let mut seen = 0;
        let listed = list(file.as_fd(), &mut 2, |_| seen += 1);
        assert_eq!((listed, seen), (Err(Errno::ENOBUFS), 2));
    }
}
