//! Lists a directory without the allocations and calls of opendir(3), and opens its entries.

#![forbid(unsafe_code)]

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::sys::files::read_entries;

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
    loop {
        read_entries(directory, &mut buffer)?;
        let mut rest = buffer.as_slice();
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((entry, after)) = first(rest) {
            *most = most.checked_sub(1).ok_or(Errno::ENOBUFS)?;
            each(entry);
            rest = after;
        }
    }
}

/// Returns the names of the wanted entries. Looks at `most` entries, and leaves out the others.
pub(crate) fn names(
    directory: BorrowedFd<'_>,
    mut most: usize,
    wanted: impl Fn(Entry<'_>) -> bool,
) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    let listed = list(directory, &mut most, |entry| {
        if wanted(entry) {
            names.push(entry.name.to_owned());
        }
    });
    match listed {
        Ok(()) | Err(Errno::ENOBUFS) => Ok(names),
        Err(errno) => Err(errno),
    }
}

/// Splits the first entry from the kernel's bytes (struct linux_dirent64): inode and offset, 8 bytes each, its length,
/// its type, and the name with zeros behind it. None if there are no more.
fn first(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let length = bytes.get(16..18)?.try_into().map(u16::from_ne_bytes).ok()?;
    let (entry, after) = bytes.split_at_checked(length.into())?;
    let (kind, name) = entry.get(18..)?.split_first()?;
    let name = CStr::from_bytes_until_nul(name).ok()?;
    let entry = Entry {
        name: OsStr::from_bytes(name.to_bytes()),
        kind: *kind,
    };
    Some((entry, after))
}

/// Opens an entry of a directory by reference; a link itself, not its target.
pub(crate) fn open_child(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
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
