//! Copies extended attributes, access lists and security labels among them, from one file to another.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Copies all attributes that this process may read and set; those it may not are left out.
pub(crate) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    // The kernel's own limits on the list and on a value: XATTR_LIST_MAX, XATTR_SIZE_MAX.
    let mut names = vec![0; 64 << 10];
    let length = match list(from, &mut names) {
        Ok(0) | Err(Errno::EOPNOTSUPP) => return Ok(()),
        done => done?,
    };
    let mut value = vec![0; 64 << 10];
    let mut rest = names.get(..length).unwrap_or_default();
    while let Ok(name) = CStr::from_bytes_until_nul(rest) {
        rest = rest.get(name.count_bytes() + 1..).unwrap_or_default();
        let copied = get(from, name, &mut value)
            .and_then(|length| set(to, name, value.get(..length).unwrap_or_default()));
        match copied {
            Ok(()) | Err(Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP | Errno::ENODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn list(file: BorrowedFd<'_>, names: &mut [u8]) -> Result<usize, Errno> {
    let (start, size) = (names.as_mut_ptr().cast(), names.len());
    // SAFETY: flistxattr writes at most `size` bytes, which the slice has.
    let length = unsafe { libc::flistxattr(file.as_raw_fd(), start, size) };
    usize::try_from(Errno::result(length)?).map_err(|_| Errno::EIO)
}

fn get(file: BorrowedFd<'_>, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
    let (start, size) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: fgetxattr reads a terminated name and writes at most `size` bytes, which the slice has.
    let length = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), start, size) };
    usize::try_from(Errno::result(length)?).map_err(|_| Errno::EIO)
}

fn set(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let (start, size) = (value.as_ptr().cast(), value.len());
    // SAFETY: fsetxattr reads a terminated name and `size` bytes, which the slice has.
    let done = unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), start, size, 0) };
    Errno::result(done).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn attributes_arrive() {
        let from = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let to = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        set(from.as_fd(), c"user.one", b"1").unwrap();
        set(from.as_fd(), c"user.empty", b"").unwrap();
        copy(from.as_fd(), to.as_fd()).unwrap();
        let mut value = [0; 8];
        assert_eq!(get(to.as_fd(), c"user.one", &mut value), Ok(1));
        assert_eq!(value[0], b'1');
        assert_eq!(get(to.as_fd(), c"user.empty", &mut value), Ok(0));
        assert_eq!(
            get(to.as_fd(), c"user.two", &mut value),
            Err(Errno::ENODATA)
        );
    }
}
