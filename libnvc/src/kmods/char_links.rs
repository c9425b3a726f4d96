//! Creates the links to device nodes in /dev/char, by number.
//!
//! A container with a volume of the host's /dev can exchange that directory for a link. So it is opened once, and a link
//! in its place is not followed.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, readlinkat};
use nix::sys::stat::Mode;
use nix::unistd::symlinkat;

use crate::error::errno_of;
use crate::host::DeviceNumber;

/// A directory with links to device nodes: /dev/char.
#[derive(Debug)]
pub struct CharLinks(OwnedFd);

impl CharLinks {
    /// Opens the directory.
    ///
    /// # Errors
    /// `ENOTDIR` for a link; the system's.
    fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(path, flags, Mode::empty()).map(Self)
    }

    /// Opens the directory, which is created if it is missing.
    ///
    /// # Errors
    /// `ENOTDIR` for a link; the system's.
    pub fn create(path: &Path) -> Result<Self, Errno> {
        fs::create_dir_all(path).map_err(|error| errno_of(&error))?;
        Self::open(path)
    }

    /// Creates the link of a node. The same link may exist.
    ///
    /// # Errors
    /// `EEXIST` if something else has its name; the system's.
    pub fn add(&self, number: DeviceNumber, target: &Path) -> Result<(), Errno> {
        let name = number.to_string();
        match symlinkat(target, &self.0, name.as_str()) {
            Err(Errno::EEXIST) if readlinkat(&self.0, name.as_str())? == target.as_os_str() => {
                Ok(())
            }
            done => done,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const NUMBER: DeviceNumber = DeviceNumber {
        major: 195,
        minor: 7,
    };

    #[test]
    fn links_are_added_once() {
        let dir = tempfile::tempdir().unwrap();
        let char = dir.path().join("dev/char");
        let links = CharLinks::create(&char).unwrap();
        for _ in 0..2 {
            assert_eq!(links.add(NUMBER, Path::new("../nvidia7")), Ok(()));
        }
        let other = links.add(NUMBER, Path::new("../other"));
        assert_eq!(other, Err(Errno::EEXIST));
        let target = fs::read_link(char.join("195:7")).unwrap();
        assert_eq!(target, Path::new("../nvidia7"));
    }

    #[test]
    fn a_link_to_another_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (etc, char) = (dir.path().join("etc"), dir.path().join("char"));
        fs::create_dir(&etc).unwrap();
        symlink("etc", &char).unwrap();
        assert!(CharLinks::open(&char).is_err());
        assert!(CharLinks::create(&char).is_err());
        let links = CharLinks::open(&etc).unwrap();
        fs::rename(&etc, dir.path().join("moved")).unwrap();
        links.add(NUMBER, Path::new("../nvidia7")).unwrap();
        assert!(dir.path().join("moved/195:7").is_symlink());
    }
}
