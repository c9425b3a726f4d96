//! Reads and sets extended attributes of open files, which nix lacks: ACLs, security labels, and attributes of users.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// The kernel's limits on a value and on the list of names: XATTR_SIZE_MAX, XATTR_LIST_MAX.
const MAX_SIZE: usize = 64 << 10;

/// The access ACL. The default ACL, for new files, is another attribute.
pub const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Returns the names of a file's attributes.
///
/// # Errors
/// `EOPNOTSUPP` if the filesystem has none, `EBADF` for a descriptor opened with `O_PATH`; the system's.
pub fn list(file: impl AsFd) -> Result<Vec<CString>, Errno> {
    let mut names = vec![0_u8; MAX_SIZE];
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most that many bytes there; the memory is borrowed, and the descriptor open, meanwhile.
    let ret = unsafe { libc::flistxattr(fd, names.as_mut_ptr().cast(), names.len()) };
    let names = filled(names, ret)?;
    let names = names.split_inclusive(|byte| *byte == 0);
    let names = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    Ok(names.map(CStr::to_owned).collect())
}

/// Returns the value of an attribute.
///
/// # Errors
/// `ENODATA` if the file has no such attribute; those of [`list`].
pub fn get(file: impl AsFd, name: &CStr) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0_u8; MAX_SIZE];
    let fd = file.as_fd().as_raw_fd();
    let into = value.as_mut_ptr().cast();
    // SAFETY: the name ends with a zero; the kernel writes at most that many bytes. Both are borrowed, and the descriptor
    // is open, meanwhile.
    let ret = unsafe { libc::fgetxattr(fd, name.as_ptr(), into, value.len()) };
    filled(value, ret)
}

/// Returns the access ACL of a file in a directory, or of the directory with the name `.`; None if there is none.
///
/// # Errors
/// `ELOOP` for a link; the system's.
pub fn access_list(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Vec<u8>>, Errno> {
    // Attributes cannot be read from a descriptor that was opened with O_PATH.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let readable = openat(directory, name, flags, Mode::empty())?;
    match get(readable, ACCESS_LIST) {
        Ok(list) => Ok(Some(list)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sets an attribute.
///
/// # Errors
/// Those of [`list`].
pub fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let fd = file.as_fd().as_raw_fd();
    let from = value.as_ptr().cast();
    // SAFETY: the name ends with a zero; the kernel reads that many bytes of the value. Both are borrowed, and the
    // descriptor is open, meanwhile.
    let ret = unsafe { libc::fsetxattr(fd, name.as_ptr(), from, value.len(), 0) };
    Errno::result(ret).map(drop)
}

/// Returns the part of a buffer that a call has filled.
fn filled(mut buffer: Vec<u8>, ret: isize) -> Result<Vec<u8>, Errno> {
    let length = usize::try_from(Errno::result(ret)?).map_err(|_| Errno::EOVERFLOW)?;
    buffer.truncate(length);
    Ok(buffer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_is_set_is_listed_and_read() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let ours = |file: &File| -> Vec<CString> {
            let names = list(file).unwrap().into_iter();
            names
                .filter(|name| name.to_bytes().starts_with(b"user."))
                .collect()
        };
        assert_eq!(ours(&file), Vec::<CString>::new());
        set(&file, c"user.one", b"1\x002").unwrap();
        set(&file, c"user.empty", b"").unwrap();
        let mut names = ours(&file);
        names.sort();
        assert_eq!(names, [c"user.empty".to_owned(), c"user.one".to_owned()]);
        assert_eq!(get(&file, c"user.one").unwrap(), b"1\x002");
        assert_eq!(get(&file, c"user.empty").unwrap(), b"");
        assert_eq!(get(&file, c"user.two"), Err(Errno::ENODATA));
        assert_eq!(set(&file, c"no.such", b""), Err(Errno::EOPNOTSUPP));
    }
}
