//! Copies extended attributes, including access lists and security labels, from one file to another.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// The kernel's own limits on the list and on a value: XATTR_LIST_MAX, XATTR_SIZE_MAX.
const MAX_SIZE: usize = 64 << 10;

/// Copies all attributes that this process may read and set; skips the others.
pub(in crate::apply) fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
) -> Result<(), nix::errno::Errno> {
    let done = copy_all(from, to);
    done.map_err(|errno| nix::errno::Errno::from_raw(errno.raw_os_error()))
}

fn copy_all(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut names = vec![0; MAX_SIZE];
    let length = match flistxattr(from, &mut names) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
        done => done?,
    };
    let mut value = vec![0; MAX_SIZE];
    let mut rest = names.get(..length).unwrap_or_default();
    while let Ok(name) = CStr::from_bytes_until_nul(rest) {
        rest = rest.get(name.count_bytes() + 1..).unwrap_or_default();
        let copied = fgetxattr(from, name, &mut value).and_then(|length| {
            let value = value.get(..length).unwrap_or_default();
            fsetxattr(to, name, value, XattrFlags::empty())
        });
        match copied {
            Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
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
        let set = |name, value| fsetxattr(&from, name, value, XattrFlags::empty());
        set(c"user.one", b"1").unwrap();
        set(c"user.empty", b"").unwrap();
        copy(from.as_fd(), to.as_fd()).unwrap();
        let mut value = [0; 8];
        assert_eq!(fgetxattr(&to, c"user.one", &mut value), Ok(1));
        assert_eq!(value[0], b'1');
        assert_eq!(fgetxattr(&to, c"user.empty", &mut value), Ok(0));
        let missing = fgetxattr(&to, c"user.two", &mut value);
        assert_eq!(missing, Err(Errno::NODATA));
    }
}
