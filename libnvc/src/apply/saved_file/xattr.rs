//! Copies extended attributes, including access lists and security labels, from one file to another.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::sys::xattr::{get, list, set};

/// Copies all attributes that this process may read and set; skips the others.
pub(in crate::apply) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let names = match list(from) {
        Err(Errno::EOPNOTSUPP) => return Ok(()),
        names => names?,
    };
    for name in names {
        let copied = get(from, &name).and_then(|value| set(to, &name, &value));
        match copied {
            Ok(()) | Err(Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP | Errno::ENODATA) => {}
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
        set(&from, c"user.one", b"1").unwrap();
        set(&from, c"user.empty", b"").unwrap();
        copy(from.as_fd(), to.as_fd()).unwrap();
        assert_eq!(get(&to, c"user.one").unwrap(), b"1");
        assert_eq!(get(&to, c"user.empty").unwrap(), b"");
        assert_eq!(get(&to, c"user.two"), Err(Errno::ENODATA));
    }
}
