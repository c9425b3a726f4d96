//! Creates device nodes in the driver root's /dev, and the links to them in /dev/char.
//!
//! A correct node is left alone. systemd and runc find devices by number in /dev/char; udev does not know nodes created
//! by hand and makes no links for them.
//!
//! A container with a volume of the host's /dev can put links there. So no link below /dev is followed, and owner and
//! mode are set on the same file that was checked.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use log::info;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{self, FchmodatFlags, Mode, SFlag, makedev};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, symlinkat, unlinkat};

use crate::host::procfs::number;
use crate::host::{DeviceNumber, DriverRoot, NodeOwner};
use crate::inroot;
use crate::path::HostPath;

/// Every user may use the node.
pub(super) const FOR_ALL: NodeOwner = NodeOwner {
    mode: 0o666,
    uid: 0,
    gid: 0,
};

/// Returns the owner and mode of the driver's nodes by /proc/driver/nvidia/params; None if none may be created.
pub(super) fn owner_of_driver(params: &str) -> Option<NodeOwner> {
    let owner = NodeOwner {
        mode: mode(params),
        uid: number(params, "DeviceFileUID").unwrap_or(0),
        gid: number(params, "DeviceFileGID").unwrap_or(0),
    };
    (number(params, "ModifyDeviceFiles") != Some(0)).then_some(owner)
}

/// Returns the same for a capability by its file.
pub(super) fn owner_of_capability(text: &str) -> Option<NodeOwner> {
    let owner = NodeOwner {
        mode: mode(text),
        ..FOR_ALL
    };
    (number(text, "DeviceFileModify") != Some(0)).then_some(owner)
}

fn mode(text: &str) -> u32 {
    number(text, "DeviceFileMode").map_or(FOR_ALL.mode, |mode| mode & 0o777)
}

/// Creates nodes in one driver root.
#[derive(Debug)]
pub(super) struct Nodes<'r> {
    root: &'r DriverRoot,
    char: Option<OwnedFd>,
}

impl<'r> Nodes<'r> {
    pub(super) fn new(root: &'r DriverRoot) -> Self {
        Self {
            root,
            char: open_directory(root, &HostPath::new("/dev/char")).ok(),
        }
    }

    /// Creates a directory below /dev unless it exists.
    pub(super) fn ensure_directory(&self, name: &str) -> Result<(), Errno> {
        let dev = self.root.resolve(&HostPath::new("/dev"))?;
        match stat::mkdirat(&dev, name, Mode::empty()) {
            Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno),
            // Not by mkdirat, which applies the umask.
            Ok(()) => chmod(
                open_child(dev.as_fd(), name.as_ref(), SFlag::S_IFDIR)?.as_fd(),
                0o755,
            ),
        }
    }

    /// Creates or corrects a node below /dev, with its link.
    pub(super) fn ensure(
        &self,
        name: &str,
        number: DeviceNumber,
        owner: NodeOwner,
    ) -> Result<(), Errno> {
        let path = HostPath::new("/dev").join(name);
        let directory = open_directory(self.root, &path.parent())?;
        ensure_node(&directory, &path, number, owner)?;
        if let Some(char) = &self.char {
            ensure_link(char, &number.to_string(), &format!("../{name}"))?;
        }
        Ok(())
    }
}

fn ensure_node(
    directory: &OwnedFd,
    path: &HostPath,
    number: DeviceNumber,
    owner: NodeOwner,
) -> Result<(), Errno> {
    let name = path.file_name();
    match stat::fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => match inroot::kind(&found) {
            // Set up by the administrator.
            SFlag::S_IFLNK => return Ok(()),
            SFlag::S_IFCHR if DeviceNumber::from_rdev(found.st_rdev) == number => {
                if NodeOwner::of(&found) == owner {
                    return Ok(());
                }
                return own(directory, path, number, owner);
            }
            _ => {
                info!("replacing {path}, which is not the expected device");
                unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?;
            }
        },
        Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    match make(directory, path, number, owner) {
        // Another process has created the same node.
        Err(Errno::EEXIST) => Ok(()),
        done => done,
    }
}

/// Creates a node; its name must be free.
fn make(
    directory: &OwnedFd,
    path: &HostPath,
    number: DeviceNumber,
    owner: NodeOwner,
) -> Result<(), Errno> {
    info!("creating device node {path}");
    let device = makedev(number.major.into(), number.minor.into());
    let mode = Mode::from_bits_truncate(owner.mode);
    stat::mknodat(directory, path.file_name(), SFlag::S_IFCHR, mode, device)?;
    // The umask may have cleared bits.
    own(directory, path, number, owner)
}

/// Creates a node in /dev that every user may use, without its link. An existing file of that name is left alone.
///
/// # Errors
/// `EEXIST` for a link to nothing; the system's.
pub(super) fn create(root: &DriverRoot, name: &str, number: DeviceNumber) -> Result<(), Errno> {
    let path = HostPath::new("/dev").join(name);
    let directory = open_directory(root, &path.parent())?;
    match make(&directory, &path, number, FOR_ALL) {
        Err(Errno::EEXIST) if root.exists(&path)? => Ok(()),
        done => done,
    }
}

/// Sets a node's owner, then its mode; `ESTALE` if another file has its name by now.
fn own(
    directory: &OwnedFd,
    path: &HostPath,
    number: DeviceNumber,
    owner: NodeOwner,
) -> Result<(), Errno> {
    let node = open_child(directory.as_fd(), path.file_name(), SFlag::S_IFCHR)?;
    if DeviceNumber::from_rdev(inroot::stat(node.as_fd())?.st_rdev) != number {
        return Err(Errno::ESTALE);
    }
    let NodeOwner { mode, uid, gid } = owner;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    fchownat(&node, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH)?;
    chmod(node.as_fd(), mode)
}

/// Changes the mode of a file opened with `O_PATH`; before Linux 6.6 that needs its name in procfs.
fn chmod(node: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let name = format!("{}/{}", inroot::OWN_DESCRIPTORS, node.as_raw_fd());
    let mode = Mode::from_bits_truncate(mode);
    stat::fchmodat(AT_FDCWD, name.as_str(), mode, FchmodatFlags::FollowSymlink)
}

/// Opens /dev or a directory in it; fails for a link.
fn open_directory(root: &DriverRoot, path: &HostPath) -> Result<OwnedFd, Errno> {
    let dev = HostPath::new("/dev");
    let directory = root.resolve_directory(&dev)?;
    if *path == dev {
        return Ok(directory);
    }
    open_child(directory.as_fd(), path.file_name(), SFlag::S_IFDIR)
}

/// Opens a directory entry by reference; `ENOTDIR` or `ESTALE` if it has another type.
fn open_child(directory: BorrowedFd<'_>, name: &OsStr, wanted: SFlag) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let found = openat(directory, name, flags, Mode::empty())?;
    match inroot::kind(&inroot::stat(found.as_fd())?) {
        kind if kind == wanted => Ok(found),
        _ if wanted == SFlag::S_IFDIR => Err(Errno::ENOTDIR),
        _ => Err(Errno::ESTALE),
    }
}

fn ensure_link(directory: &OwnedFd, name: &str, target: &str) -> Result<(), Errno> {
    match readlinkat(directory, name) {
        Ok(text) if text == *target => return Ok(()),
        Ok(_) => unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?,
        Err(Errno::ENOENT) => {}
        // Not a link, so neither udev's nor ours.
        Err(Errno::EINVAL) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    match symlinkat(target, directory, name) {
        Err(Errno::EEXIST) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A container with the host's /dev replaces the node with a link between check and change.
    #[test]
    #[ignore = "needs root"]
    fn a_link_replacing_a_node_is_not_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let shadow = dir.path().join("shadow");
        std::fs::write(&shadow, "").unwrap();
        std::fs::set_permissions(&shadow, PermissionsExt::from_mode(0o600)).unwrap();
        symlink("shadow", dir.path().join("nvidia0")).unwrap();
        let directory = std::fs::File::open(dir.path()).unwrap().into();
        let (path, number) = (
            HostPath::new("/dev/nvidia0"),
            DeviceNumber {
                major: 195,
                minor: 0,
            },
        );
        let done = own(&directory, &path, number, FOR_ALL);
        assert_eq!(done, Err(Errno::ESTALE));
        let mode = shadow.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn permissions_by_text() {
        let owner = NodeOwner {
            mode: 0o660,
            uid: 1,
            gid: 2,
        };
        for (text, expected) in [
            ("", Some(FOR_ALL)),
            ("ModifyDeviceFiles: 1\nDeviceFileMode: 438\n", Some(FOR_ALL)),
            (
                "DeviceFileUID: 1\nDeviceFileGID: 2\nDeviceFileMode: 432\n",
                Some(owner),
            ),
            ("ModifyDeviceFiles: 0\nDeviceFileUID: 1\n", None),
        ] {
            assert_eq!(owner_of_driver(text), expected);
        }
        let text = "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n";
        let capability = owner_of_capability(text).unwrap();
        assert_eq!(capability.mode, 0o400);
    }
}
