//! Opens, checks and clones the sources of bind mounts, each restricted before it becomes visible.

use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};

use crate::apply::steps::BindKind;
use crate::directory::open_child;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{DeviceNumber, DriverRoot, nodes};
use crate::inroot::{self, Identity, RootDir};
use crate::path::{ContainerPath, HostPath};
use crate::sys::mount::{self, MountAttributes};
use crate::trust::Caller;

/// A source that passed its checks.
#[derive(Debug)]
pub(in crate::apply) struct ReadySource {
    /// Its name for messages.
    pub(in crate::apply) name: PathBuf,
    /// Type and permission bits for a missing mount point.
    pub(in crate::apply) mode: u32,
    /// Its number, if it is a device, and its owner.
    pub(in crate::apply) device: Option<DeviceNumber>,
    pub(in crate::apply) owner: (u32, u32),
    /// Identity of the file, to recognise an existing mount of it.
    pub(in crate::apply) identity: Identity,
    /// Required attributes of the mount.
    pub(in crate::apply) attributes: MountAttributes,
    /// Attributes that would make the mount useless.
    pub(in crate::apply) must_clear: MountAttributes,
    /// The detached, restricted clone to attach; None on kernels without detached mounts.
    pub(in crate::apply) mount: Option<OwnedFd>,
    /// Its location in the container's namespace, for reopening it.
    pub(in crate::apply) location: Location,
}

/// The location of a source.
#[derive(Clone, Debug)]
pub(in crate::apply) enum Location {
    /// Below the driver root.
    Host(HostPath),
    /// In the image.
    Image(ContainerPath),
}

impl Location {
    /// Returns the attributes that a mount of this source must not have. The image's own mounts keep all attributes:
    /// noexec on a volume is its owner's choice.
    fn must_clear(&self, expected: ExpectedType) -> MountAttributes {
        match self {
            Self::Host(_) => expected.must_clear(),
            Self::Image(_) => MountAttributes::empty(),
        }
    }
}

/// The expected type of a source.
#[derive(Clone, Copy, Debug)]
pub(in crate::apply) enum ExpectedType {
    /// A file of this kind.
    Kind(BindKind),
    /// A character device with this number.
    Device(DeviceNumber),
}

/// Sources below the driver root, for use in the caller's mount namespace.
#[derive(Debug)]
pub(in crate::apply) struct HostSources<'r> {
    root: &'r DriverRoot,
    /// The user of the container's process.
    user: u32,
    /// The directory of the last source: most sources have neighbours.
    directory: Option<(HostPath, OwnedFd)>,
}

impl<'r> HostSources<'r> {
    pub(in crate::apply) fn new(root: &'r DriverRoot, user: u32) -> Self {
        Self {
            root,
            user,
            directory: None,
        }
    }

    /// Opens and clones a source.
    pub(in crate::apply) fn open(
        &mut self,
        path: &HostPath,
        expected: ExpectedType,
    ) -> Result<ReadySource> {
        let name = self.root.join(path);
        let location = Location::Host(path.clone());
        // The clone itself is examined, so the order does not matter.
        if let Ok((mount, stat)) = self.clone_at_once(path, expected) {
            expected.check(&stat, &name)?;
            return Ok(ReadySource::with(
                Some(mount),
                &stat,
                name,
                expected,
                location,
            ));
        }
        let fd = self.resolve(path).map_err(|errno| {
            let error = Error::file("stat failed", &name, errno);
            match (expected, errno) {
                (ExpectedType::Device(number), Errno::ENOENT) => {
                    match nodes::maker_of(path, number) {
                        Some(hint) => error.hint(hint),
                        None => error,
                    }
                }
                _ => error,
            }
        })?;
        if let ExpectedType::Kind(BindKind::Ipc) = expected {
            self.check_owner(fd.as_fd(), &name)?;
        }
        ReadySource::new(fd.as_fd(), name, expected, location)
    }

    /// Refuses a directory for clients that belongs to another user of the host: any user can create the name of MPS's,
    /// and would be the server of all containers. The container's own user may serve it.
    fn check_owner(&self, fd: BorrowedFd<'_>, name: &Path) -> Result<()> {
        let stat = inroot::stat(fd).map_err(|errno| Error::file("stat failed", name, errno))?;
        let owner = stat.st_uid;
        if inroot::kind(&stat) != SFlag::S_IFDIR
            || !Caller::current().is_other(owner)
            || owner == self.user
        {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Malformed, "leaving out a directory of sockets");
        Err(error.of(name.display()).because(format!(
            "it belongs to the user {owner}, and not to root, the caller or the container's user"
        )))
    }

    /// Opens a path without following links that other users could have created since discovery: a file may lie in a
    /// directory of a user, and the MPS directory lies in one that all users and containers can write.
    fn resolve(&mut self, path: &HostPath) -> Result<OwnedFd, Errno> {
        let directory = self.directory(path.parent())?;
        let found = open_child(directory, path.file_name())?;
        match inroot::kind(&inroot::stat(found.as_fd())?) {
            SFlag::S_IFLNK => Ok(self.root.unforged(path)?.fd),
            _ => Ok(found),
        }
    }

    /// Makes the restricted clone with one call, and returns its stat; for Linux 6.15 and paths that do not end in a
    /// link.
    fn clone_at_once(
        &mut self,
        path: &HostPath,
        expected: ExpectedType,
    ) -> Result<(OwnedFd, FileStat), Errno> {
        let name = CString::new(path.file_name().as_bytes()).map_err(|_| Errno::EINVAL)?;
        let directory = self.directory(path.parent())?;
        // The attributes of a directory for clients depend on its owner, and its path may have no links. Check both
        // before cloning: unmounting a discarded clone takes the kernel as long as a hundred other calls.
        if matches!(expected, ExpectedType::Kind(BindKind::Ipc)) {
            let found = fstatat(directory, &*name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if inroot::kind(&found) != SFlag::S_IFSOCK {
                return Err(Errno::ENOTSUP);
            }
        }
        let (set, clear) = (expected.attributes(None), expected.must_clear());
        let mount = mount::clone_mount_with(directory, &name, set, clear, libc::MS_PRIVATE)?;
        let stat = inroot::stat(mount.as_fd())?;
        match (expected, inroot::kind(&stat)) {
            (_, SFlag::S_IFLNK) => Err(Errno::ELOOP),
            // Another file has the name by now.
            (ExpectedType::Kind(BindKind::Ipc), kind) if kind != SFlag::S_IFSOCK => {
                Err(Errno::ENOTSUP)
            }
            _ => Ok((mount, stat)),
        }
    }

    fn directory(&mut self, path: HostPath) -> Result<BorrowedFd<'_>, Errno> {
        let known = self.directory.take().filter(|(known, _)| *known == path);
        let entry = match known {
            Some(entry) => entry,
            None => {
                let found = self.root.unforged(&path)?;
                if found.kind != SFlag::S_IFDIR {
                    return Err(Errno::ENOTDIR);
                }
                (path, found.fd)
            }
        };
        Ok(self.directory.insert(entry).1.as_fd())
    }
}

impl ReadySource {
    /// Opens and clones a file of the image; call it in the container's mount namespace.
    ///
    /// Links in the last component are not followed: discovery found the real file, so a link was created later.
    pub(in crate::apply) fn in_image(
        root: &RootDir,
        rootfs: &Path,
        path: &ContainerPath,
        kind: BindKind,
    ) -> Result<Self> {
        let name = path.below(rootfs);
        let found = root.resolve_nofollow(path.as_path());
        let fd = found.map_err(|errno| Error::file("stat failed", &name, errno))?;
        Self::new(
            fd.as_fd(),
            name,
            ExpectedType::Kind(kind),
            Location::Image(path.clone()),
        )
    }

    fn new(
        fd: BorrowedFd<'_>,
        name: PathBuf,
        expected: ExpectedType,
        location: Location,
    ) -> Result<Self> {
        let stat = inroot::stat(fd).map_err(|errno| Error::file("stat failed", &name, errno))?;
        expected.check(&stat, &name)?;
        let clear = location.must_clear(expected);
        let mount = match clone_restricted(fd, expected, clear, &stat) {
            Ok(mount) => Some(mount),
            Err(Errno::ENOSYS) => None,
            Err(errno) => return Err(cloning_failed(fd, &name, errno)),
        };
        Ok(Self::with(mount, &stat, name, expected, location))
    }

    fn with(
        mount: Option<OwnedFd>,
        stat: &FileStat,
        name: PathBuf,
        expected: ExpectedType,
        location: Location,
    ) -> Self {
        Self {
            name,
            mode: stat.st_mode,
            device: match expected {
                ExpectedType::Device(number) => Some(number),
                ExpectedType::Kind(_) => None,
            },
            owner: (stat.st_uid, stat.st_gid),
            identity: inroot::identity(stat),
            attributes: expected.attributes(Some(stat)),
            must_clear: location.must_clear(expected),
            mount,
            location,
        }
    }
}

impl ExpectedType {
    fn check(self, stat: &FileStat, name: &Path) -> Result<()> {
        let kind = inroot::kind(stat);
        match self {
            Self::Device(number) => {
                if kind == SFlag::S_IFCHR && DeviceNumber::from_rdev(stat.st_rdev) == number {
                    return Ok(());
                }
                let error = Error::new(ErrorKind::Malformed, "invalid device node");
                let error = error.of(name.display());
                Err(error.hint(format!("it should be the character device {number}: remove it and load the driver again")))
            }
            Self::Kind(file) if file.is_file() && kind != SFlag::S_IFREG => {
                let text = format!(
                    "unexpected source file mode {:o} for {}",
                    stat.st_mode,
                    name.display()
                );
                Err(Error::new(ErrorKind::Malformed, text))
            }
            // A daemon that runs as a user of its own can put anything there.
            Self::Kind(BindKind::Ipc) if !matches!(kind, SFlag::S_IFSOCK | SFlag::S_IFDIR) => {
                let error = Error::new(ErrorKind::Malformed, "unexpected file");
                Err(error.of(name.display()).because("it is not a socket"))
            }
            Self::Kind(_) => Ok(()),
        }
    }

    /// Returns the required attributes of a mount of this kind.
    ///
    /// All but one are read-only. That does not prevent opening a device for writing or connecting to a socket, but it
    /// prevents the container's root from changing the host's inodes and directories of devices. The MPS daemon's
    /// directory is writable for its clients, because it has lock and log files, unless it belongs to another user of
    /// the host: a container's root could create files owned by root in that user's directory.
    fn attributes(self, stat: Option<&FileStat>) -> MountAttributes {
        use MountAttributes as A;
        let is_for_clients = || {
            let is_other = |uid| Caller::current().is_other(uid);
            stat.is_some_and(|stat| inroot::kind(stat) == SFlag::S_IFDIR && !is_other(stat.st_uid))
        };
        match self {
            Self::Device(_) | Self::Kind(BindKind::DeviceDirectory) => {
                A::RDONLY | A::NOSUID | A::NOEXEC
            }
            Self::Kind(
                BindKind::Library | BindKind::Program | BindKind::File | BindKind::DataDirectory,
            ) => A::RDONLY | A::NODEV | A::NOSUID,
            Self::Kind(BindKind::Ipc) if is_for_clients() => A::NODEV | A::NOSUID | A::NOEXEC,
            Self::Kind(BindKind::Ipc | BindKind::Proc) => {
                A::RDONLY | A::NODEV | A::NOSUID | A::NOEXEC
            }
        }
    }

    /// Returns the attributes that would make the mount useless; the source's mount may have them.
    fn must_clear(self) -> MountAttributes {
        match self {
            Self::Device(_) | Self::Kind(BindKind::DeviceDirectory) => MountAttributes::NODEV,
            Self::Kind(BindKind::Library | BindKind::Program) => MountAttributes::NOEXEC,
            Self::Kind(_) => MountAttributes::empty(),
        }
    }
}

/// Clones the mount at a descriptor and restricts the clone while it is not visible to others.
///
/// `ENOSYS` if this kernel or sandbox lacks one of the calls.
fn clone_restricted(
    fd: BorrowedFd<'_>,
    expected: ExpectedType,
    clear: MountAttributes,
    stat: &FileStat,
) -> Result<OwnedFd, Errno> {
    let mount = mount::clone_mount(fd, 0)?;
    let set = expected.attributes(Some(stat));
    // Private: otherwise a clone stays in its source's peer group.
    let private = Some(libc::MS_PRIVATE);
    match mount::set_attributes(mount.as_fd(), set, clear, private) {
        // A user namespace may not clear a restriction; if it is not set, there is nothing to clear.
        Err(Errno::EPERM) if !must_be_cleared(fd, clear) => {
            mount::set_attributes(mount.as_fd(), set, MountAttributes::empty(), private)?;
        }
        done => done?,
    }
    Ok(mount)
}

fn must_be_cleared(fd: BorrowedFd<'_>, must_clear: MountAttributes) -> bool {
    mount::attributes(fd).map_or(true, |found| found.intersects(must_clear))
}

fn cloning_failed(fd: BorrowedFd<'_>, name: &Path, errno: Errno) -> Error {
    let error = Error::file("mount operation failed", name, errno);
    let hindered = MountAttributes::NODEV | MountAttributes::NOEXEC;
    if errno == Errno::EPERM && must_be_cleared(fd, hindered) {
        return error.hint(locked(name));
    }
    error
}

/// Returns the hint for a source whose mount has an attribute that would make the new mount useless.
pub(in crate::apply) fn locked(source: &Path) -> String {
    let place = source.parent().unwrap_or(source).display();
    format!(
        "the file system at {place} is mounted nodev or noexec, which a user namespace cannot clear"
    )
}

impl fmt::Display for ReadySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.display().fmt(f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Also if the volume is remounted noexec after discovery.
    #[test]
    #[ignore = "needs root"]
    fn a_library_of_the_image_stays_noexec() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let dir = tempfile::tempdir().unwrap();
        let none = None::<&str>;
        let in_thread = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let noexec = MsFlags::MS_NOEXEC;
            mount(none, dir.path(), Some("tmpfs"), noexec, none).unwrap();
            std::fs::write(dir.path().join("lib.so"), "").unwrap();
            let root = RootDir::open(dir.path()).unwrap();
            let path = ContainerPath::new("/lib.so");
            let source =
                ReadySource::in_image(&root, dir.path(), &path, BindKind::Library).unwrap();
            assert!(source.must_clear.is_empty());
            if let Some(mount) = source.mount {
                let found = mount::attributes(mount.as_fd()).unwrap();
                assert!(found.contains(source.attributes | MountAttributes::NOEXEC));
            }
            umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap());
    }

    #[test]
    #[ignore = "needs root"]
    fn a_link_that_another_user_could_create_is_refused() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["etc/pipe", "tmp", "var"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("etc/shadow"), "").unwrap();
        let _listener = UnixListener::bind(at("etc/socket")).unwrap();
        for place in ["tmp", "var"] {
            symlink("/etc", at(place).join("etc")).unwrap();
            symlink("/etc/shadow", at(place).join("lib.so")).unwrap();
        }
        fs::set_permissions(at("tmp"), Permissions::from_mode(0o1777)).unwrap();
        // By an access list.
        symlink("/etc/shadow", at("etc/users.so")).unwrap();
        lchown(at("etc/users.so"), Some(4242), None).unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let open = |path: &str, kind| {
            let source =
                HostSources::new(&root, 0).open(&HostPath::new(path), ExpectedType::Kind(kind));
            source
                .map(|source| source.identity)
                .map_err(|error| error.errno())
        };
        let of_user = open("/etc/users.so", BindKind::Library);
        assert_eq!(of_user, Err(Some(Errno::ELOOP)));
        for (name, kind) in [
            ("etc", BindKind::Ipc),
            ("etc/pipe", BindKind::Ipc),
            ("etc/socket", BindKind::Ipc),
            ("lib.so", BindKind::Library),
            ("etc/shadow", BindKind::File),
        ] {
            let found = open(&format!("/tmp/{name}"), kind);
            assert_eq!(found, Err(Some(Errno::ELOOP)), "{name}");
            // An administrator's.
            assert!(open(&format!("/var/{name}"), kind).is_ok(), "{name}");
        }
    }
}
