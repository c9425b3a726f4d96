//! Lists a directory without the allocations and calls of opendir(3).

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

/// One name in a directory and the type of what it names (`DT_*`), if the file system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) kind: u8,
}

/// Calls `each` with every entry from the descriptor's position on, `.` and `..` among them.
///
/// `ENOBUFS` if there are more names than `most`, from which each one is taken away. A directory can have millions.
pub(crate) fn list(
    directory: BorrowedFd<'_>,
    most: &mut usize,
    mut each: impl FnMut(Entry<'_>),
) -> Result<(), Errno> {
    let mut buffer = Vec::with_capacity(32 << 10);
    loop {
        read(directory, &mut buffer)?;
        let mut records = buffer.as_slice();
        if records.is_empty() {
            return Ok(());
        }
        while let Some((entry, rest)) = split(records) {
            *most = most.checked_sub(1).ok_or(Errno::ENOBUFS)?;
            each(entry);
            records = rest;
        }
    }
}

/// Replaces what is in a buffer with the next records, as many as it has room for.
fn read(directory: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    buffer.clear();
    // SAFETY: getdents64 writes at most as many bytes as it is told there is room for.
    let length = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            directory.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.capacity(),
        )
    };
    let length = usize::try_from(Errno::result(length)?).map_err(|_| Errno::EIO)?;
    // SAFETY: the kernel wrote that many bytes, within the capacity.
    unsafe { buffer.set_len(length) };
    Ok(())
}

/// The first of the kernel's records (`struct linux_dirent64`) and the rest.
fn split(records: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    const LENGTH: usize = 16; // after the inode number and the position
    const KIND: usize = 18;
    const NAME: usize = 19;
    let length = [*records.get(LENGTH)?, *records.get(LENGTH + 1)?];
    let (record, rest) = records.split_at_checked(usize::from(u16::from_ne_bytes(length)))?;
    let name = record.get(NAME..)?.split(|&byte| byte == 0).next()?;
    let entry = Entry {
        name: OsStr::from_bytes(name),
        kind: *record.get(KIND)?,
    };
    Some((entry, rest))
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

    #[test]
    fn broken_records_end_the_list() {
        let mut record = [0; 24];
        record[19] = b'a';
        for length in [0_u16, 10, 18, 25, u16::MAX] {
            record[16..18].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(split(&record), None, "{length}");
        }
        assert_eq!(split(&record[..17]), None);
        record[16..18].copy_from_slice(&24_u16.to_ne_bytes());
        let (entry, rest) = split(&record).unwrap();
        assert_eq!((entry.name.as_bytes(), rest), (&b"a"[..], &b""[..]));
    }
}
