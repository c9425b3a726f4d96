//! Decides with whose rights something may be made in a directory of a container: by the mount that the directory is on.
//!
//! The image chooses, by its links, where files are made, and a volume in the container is an object of the host's. The
//! root's own mount is the container's; so is a tmpfs that a runtime made for it alone. On every other mount nothing is
//! created, replaced or restored but what the container's own root could create there: with its user and group, and
//! without a capability of the caller's user namespace. In a container that has no user namespace of its own that is
//! nothing: root there is the host's root, and whether the container's processes will be root is not known yet.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability, CapsHashSet};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat, major, minor};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::apply::mount::table;
use crate::container::Container;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{self, RootDir};
use crate::read_file;
use crate::sys::mount::{self, Described, MountAttributes};
use crate::sys::{namespace, sandbox};

/// Inode number of the first user namespace (`PROC_USER_INIT_INO`).
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Where runtimes mount a tmpfs for a container alone, and where an earlier call of ours did.
const PLACES: [&str; 5] = ["/dev", "/run", "/proc", "/proc/driver/nvidia", "/tmp"];

/// With whose rights something may be made on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The caller's.
    Full,
    /// Those that the container's owner has without any capability.
    AsOwner,
    /// Nothing may be made.
    Nothing,
}

/// What may be made on mounts that are neither the root's nor a tmpfs for the container alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elsewhere {
    /// Whatever the kernel lets the caller do, who has no rights but those in the container's own user namespace.
    Everything,
    AsOwner,
    Nothing,
}

/// The caller's view, noted before its mount namespace is left.
#[derive(Debug)]
pub(super) struct Callers {
    /// Its mount table, which is read when it is needed.
    table: File,
    text: OnceCell<Vec<u8>>,
    /// The container's root, if the caller sees it too.
    root: Option<PathBuf>,
    /// The user namespace of the container, if it is another than the caller's.
    user_namespace: Option<OwnedFd>,
    elsewhere: Elsewhere,
}

/// What may be made in a container, and where.
#[derive(Debug)]
pub(super) struct Authority {
    callers: Option<Callers>,
    elsewhere: Elsewhere,
    root: RootDir,
    root_mount: u64,
    /// The root's name in its mount table, for messages.
    rootfs: PathBuf,
    /// This thread's `/proc/thread-self/fd`.
    descriptors: OwnedFd,
    /// What was found out, by mount id; the descriptor keeps the id from being used again.
    known: RefCell<HashMap<u64, (Reach, OwnedFd)>>,
}

impl Callers {
    /// Notes what must be known of the caller, in whose namespaces the calling thread still is.
    pub(super) fn note(container: &Container, descriptors: &OwnedFd) -> Result<Self> {
        let failed = |name: &'static str| {
            move |errno| Error::file("open failed", format!("/proc/thread-self/{name}"), errno)
        };
        let table = open_sibling(descriptors.as_fd(), "mountinfo").map_err(failed("mountinfo"))?;
        let own =
            fstatat(descriptors, "../ns/user", AtFlags::empty()).map_err(failed("ns/user"))?;
        let owning = namespace::owner(container.namespace.fd.as_fd()).ok();
        let user_namespace = owning.filter(|owning| {
            let stat = inroot::stat(owning.as_fd());
            stat.is_ok_and(|stat| inroot::identity(&stat) != inroot::identity(&own))
        });
        let is_rootless = container.namespace.is_callers && own.st_ino != FIRST_USER_NAMESPACE;
        let is_other = Some(container.process.owner().0) != Some(nix::unistd::geteuid().as_raw());
        let elsewhere = match (is_rootless, user_namespace.is_some() || is_other) {
            (true, _) => Elsewhere::Everything,
            (false, true) => Elsewhere::AsOwner,
            (false, false) => Elsewhere::Nothing,
        };
        Ok(Self {
            table: table.into(),
            text: OnceCell::new(),
            root: own_root(container),
            user_namespace,
            elsewhere,
        })
    }

    /// Whether the container's owner is to be somebody with other rights than the caller's.
    pub(super) fn lowers(&self) -> bool {
        self.elsewhere == Elsewhere::AsOwner
    }

    /// Takes the rights of the container's owner on volumes away, where the caller's groups could not be given up.
    pub(super) fn keeps_groups(&mut self) {
        self.elsewhere = Elsewhere::Nothing;
    }

    /// Whether a file system is mounted in the caller's namespace, outside the container's root.
    fn shows(&self, device: u64) -> Result<bool, Errno> {
        if self.text.get().is_none() {
            let table = self.table.try_clone().map_err(|e| errno_of(&e))?;
            let _ = self.text.set(read_file::read(table, u64::MAX)?);
        }
        let text = self.text.get().ok_or(Errno::EIO)?;
        let device = (major(device), minor(device));
        Ok(table::shows(text, device, self.root.as_deref()))
    }
}

/// The container's root as the caller names it, if that is the same directory: what is mounted below is the container's.
fn own_root(container: &Container) -> Option<PathBuf> {
    let identity = |fd| inroot::stat(fd).map(|stat| inroot::identity(&stat)).ok();
    let seen = RootDir::open(container.rootfs()).ok()?;
    if identity(seen.as_fd()) != identity(container.process.root().as_fd()) {
        return None;
    }
    inroot::name_of(seen.as_fd()).ok()
}

impl Authority {
    /// For a thread that has entered the container.
    pub(super) fn new(
        callers: Callers,
        container: &Container,
        root: &RootDir,
        descriptors: &OwnedFd,
    ) -> Result<Self> {
        let elsewhere = callers.elsewhere;
        let mut authority = Self::of_root_alone(root, descriptors.as_fd())?;
        authority.elsewhere = elsewhere;
        authority.callers = Some(callers);
        authority.rootfs = container.rootfs().to_owned();
        Ok(authority)
    }

    /// The same where nothing is known of the container but its root.
    pub(super) fn of_root_alone(root: &RootDir, descriptors: BorrowedFd<'_>) -> Result<Self> {
        let failed = |errno| Error::system("looking at the container's root failed", errno);
        let copy = |fd: BorrowedFd<'_>| {
            let copied = fd.try_clone_to_owned();
            copied.map_err(|e| failed(errno_of(&e)))
        };
        Ok(Self {
            callers: None,
            elsewhere: Elsewhere::Nothing,
            root_mount: mount_id(root.as_fd(), descriptors).map_err(failed)?,
            root: RootDir::from_fd(copy(root.as_fd())?),
            rootfs: PathBuf::from("/"),
            descriptors: copy(descriptors)?,
            known: RefCell::default(),
        })
    }

    /// The user namespace that ldconfig is to be in.
    pub(super) fn user_namespace(&self) -> Option<BorrowedFd<'_>> {
        let callers = self.callers.as_ref()?;
        callers.user_namespace.as_ref().map(AsFd::as_fd)
    }

    /// Whether ldconfig may write on mounts other than the root's: with the container's own rights, or the caller's that
    /// are no more than those.
    pub(super) fn ldconfig_writes_everywhere(&self) -> bool {
        self.elsewhere == Elsewhere::Everything || self.user_namespace().is_some()
    }

    /// With whose rights something may be made in a directory.
    pub(super) fn reach(&self, directory: BorrowedFd<'_>) -> Result<Reach, Errno> {
        if self.elsewhere == Elsewhere::Everything {
            return Ok(Reach::Full);
        }
        let id = self.mount_id(directory)?;
        if id == self.root_mount {
            return Ok(Reach::Full);
        }
        if let Some((reach, _)) = self.known.borrow().get(&id) {
            return Ok(*reach);
        }
        let held = directory.try_clone_to_owned();
        let held = held.map_err(|e| errno_of(&e))?;
        let reach = self.judge(held.as_fd(), id)?;
        self.known.borrow_mut().insert(id, (reach, held));
        Ok(reach)
    }

    /// Notes that a mount is ours: a tmpfs that this run or an earlier one made.
    pub(super) fn trust(&self, mount: BorrowedFd<'_>) -> Result<(), Errno> {
        let held = mount.try_clone_to_owned();
        let held = held.map_err(|e| errno_of(&e))?;
        let id = self.mount_id(mount)?;
        self.known.borrow_mut().insert(id, (Reach::Full, held));
        Ok(())
    }

    /// The same in what may be a tmpfs of an earlier run's, wherever that is.
    pub(super) fn reach_in_tmpfs(&self, directory: BorrowedFd<'_>) -> Result<Reach, Errno> {
        if self.is_private_tmpfs(directory)? {
            Ok(Reach::Full)
        } else {
            self.reach(directory)
        }
    }

    /// With whose rights ldconfig, and what undoes its work, may change something in a directory.
    pub(super) fn reach_of_ldconfig(&self, directory: BorrowedFd<'_>) -> Result<Reach, Errno> {
        if self.elsewhere == Elsewhere::Everything || self.is_on_root(directory)? {
            return Ok(Reach::Full);
        }
        Ok(match self.user_namespace() {
            Some(_) if self.elsewhere == Elsewhere::AsOwner => Reach::AsOwner,
            _ => Reach::Nothing,
        })
    }

    /// Whether a directory is on the root's own mount.
    fn is_on_root(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.mount_id(directory)? == self.root_mount)
    }

    /// Whether two descriptors are on one mount.
    pub(super) fn same_mount(&self, a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.mount_id(a)? == self.mount_id(b)?)
    }

    fn judge(&self, directory: BorrowedFd<'_>, id: u64) -> Result<Reach, Errno> {
        let otherwise = match self.elsewhere {
            Elsewhere::Everything => Reach::Full,
            Elsewhere::AsOwner => Reach::AsOwner,
            Elsewhere::Nothing => Reach::Nothing,
        };
        if is_tmpfs(directory)? && self.is_place(id)? && self.is_private_tmpfs(directory)? {
            return Ok(Reach::Full);
        }
        Ok(otherwise)
    }

    /// Whether a mount is at a place where runtimes mount what is the container's alone.
    fn is_place(&self, id: u64) -> Result<bool, Errno> {
        for place in PLACES {
            if let Ok(found) = self.root.resolve_directory(Path::new(place))
                && self.mount_id(found.as_fd())? == id
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a directory is in a tmpfs, mounted from its top, that is nowhere in the caller's namespace.
    pub(super) fn is_private_tmpfs(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        let Some(callers) = &self.callers else {
            return Ok(false);
        };
        // A devtmpfs looks the same to statfs(2), and is the host's wherever it is mounted.
        if !is_tmpfs(directory)? || !self.is_whole_tmpfs(directory)? {
            return Ok(false);
        }
        Ok(!callers.shows(inroot::stat(directory)?.st_dev)?)
    }

    fn is_whole_tmpfs(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        let of = |kind: &[u8], root: &[u8]| kind == b"tmpfs" && root == b"/";
        if let Ok(Described { kind, root }) = mount::describe(directory) {
            return Ok(of(&kind, &root));
        }
        let (id, text) = (self.mount_id(directory)?, self.table()?);
        Ok(table::find(&text, id).is_some_and(|line| of(line.kind, line.root)))
    }

    fn mount_id(&self, fd: BorrowedFd<'_>) -> Result<u64, Errno> {
        mount_id(fd, self.descriptors.as_fd())
    }

    /// The mount table of the namespace that this thread is in.
    fn table(&self) -> Result<Vec<u8>, Errno> {
        let table = open_sibling(self.descriptors.as_fd(), "mountinfo")?;
        read_file::read(File::from(table), u64::MAX)
    }

    /// A failure because a directory is on a volume, which it names unless nobody may write there.
    pub(super) fn refusal(&self, operation: &str, path: &Path, directory: BorrowedFd<'_>) -> Error {
        if mount::attributes(directory).is_ok_and(|has| has.contains(MountAttributes::RDONLY)) {
            return Error::file(operation, path, Errno::EROFS);
        }
        let point = self.mount_point(directory);
        let point = point.unwrap_or_else(|| "its directory".into());
        let text = format!(
            "{operation}: {}: {} is a volume, which may not be changed",
            path.display(),
            point.display()
        );
        Error::new(ErrorKind::System, text).hint(HINT)
    }

    /// Where the mount of a directory is in the container.
    fn mount_point(&self, directory: BorrowedFd<'_>) -> Option<PathBuf> {
        let id = self.mount_id(directory).ok()?;
        let text = self.table().ok()?;
        let point = table::find(&text, id)?.point();
        let point = PathBuf::from(std::ffi::OsString::from_vec(point));
        let below = point.strip_prefix(&self.rootfs).unwrap_or(&point);
        Some(Path::new("/").join(below))
    }
}

/// The way out, where a volume is in the way.
const HINT: &str = "on a volume nothing is made with more rights than the container's own root has there: \
     mount the volume elsewhere, or put onto it what is missing";

impl Reach {
    /// Does something with these rights.
    pub(super) fn act<T>(self, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        match self {
            Self::Full => action(),
            Self::AsOwner => {
                let _lowered = Lowered::now()?;
                action()
            }
            Self::Nothing => Err(Errno::EPERM),
        }
    }
}

/// Capabilities that let this thread do to files what their owners and modes do not.
const OVER_FILES: [Capability; 8] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_LINUX_IMMUTABLE,
    Capability::CAP_MKNOD,
    Capability::CAP_SYS_RESOURCE,
];

/// As long as this lives, this thread's capabilities are not effective for files; another's are not concerned.
struct Lowered(CapsHashSet);

impl Lowered {
    fn now() -> Result<Self, Errno> {
        let failed = |_| Errno::EPERM;
        let before = caps::read(None, CapSet::Effective).map_err(failed)?;
        let lowered = before
            .iter()
            .filter(|capability| !OVER_FILES.contains(capability))
            .copied()
            .collect();
        caps::set(None, CapSet::Effective, &lowered).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        // They are permitted still, so this cannot fail.
        if let Err(error) = caps::set(None, CapSet::Effective, &self.0) {
            log::warn!("capabilities stay lowered: {error}");
        }
    }
}

/// Gives up the calling thread's supplementary groups, through which it would have rights that the container's owner has
/// not. False if it may not and has some.
pub(super) fn drop_groups(group: u32) -> bool {
    match sandbox::set_groups(&[group]) {
        Ok(()) => true,
        Err(_) => nix::unistd::getgroups().is_ok_and(|groups| groups.is_empty()),
    }
}

/// The id of the mount that a descriptor is on.
pub(super) fn mount_id(fd: BorrowedFd<'_>, descriptors: BorrowedFd<'_>) -> Result<u64, Errno> {
    if let Some(id) = mount::place(fd)?.id {
        return Ok(id);
    }
    // Before Linux 5.8.
    let info = open_sibling(descriptors, &format!("fdinfo/{}", fd.as_raw_fd()))?;
    let info = read_file::read(File::from(info), u64::MAX)?;
    let mut lines = info.split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| {
        let text = std::str::from_utf8(line.strip_prefix(b"mnt_id:")?);
        text.ok()?.trim().parse().ok()
    });
    id.ok_or(Errno::ENOSYS)
}

/// Opens a file beside this thread's `fd` directory in /proc.
fn open_sibling(descriptors: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let name = format!("../{name}");
    openat(descriptors, name.as_str(), flags, Mode::empty())
}

fn is_tmpfs(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == TMPFS_MAGIC)
}
