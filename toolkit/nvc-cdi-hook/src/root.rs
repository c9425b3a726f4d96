//! Opens a container's root. Only libnvc opens files below it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libnvc::container::is_mount_point;
use libnvc::{Error, ErrorKind, Result};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat, stat};

/// Opens a root by its host path. It must be a mount point, and not the host's own root.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let failed = |errno| Error::file("opening the container's root failed", path, errno);
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(path, flags, Mode::empty()).map_err(failed)?;
    let (own, host) = (fstat(&root).map_err(failed)?, stat("/").map_err(failed)?);
    let refused = |why: &str| {
        let text = format!("the container's root {} {why}", path.display());
        Err(Error::new(ErrorKind::InvalidArgument, text))
    };
    if (own.st_dev, own.st_ino) == (host.st_dev, host.st_ino) {
        return refused("is the host's");
    }
    if is_mount_point(root.as_fd()) == Some(false) {
        return refused("is not a mount point");
    }
    Ok(root)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_other_mount_points_are_roots() {
        let directory = tempfile::tempdir().unwrap();
        for (path, why) in [
            (Path::new("/"), "is the host's"),
            (directory.path(), "is not a mount point"),
        ] {
            let text = format!("the container's root {} {why}", path.display());
            assert_eq!(open_root(path).unwrap_err().message(), text);
        }
        open_root(Path::new("/proc")).unwrap();
        let missing = open_root(&directory.path().join("none")).unwrap_err();
        assert_eq!(missing.errno(), Some(nix::errno::Errno::ENOENT));
    }
}
