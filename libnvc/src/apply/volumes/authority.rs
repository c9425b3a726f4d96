//! Decides with whose rights a file may be created in a directory of the container. The directory's mount decides.
//!
//! The image's links choose where files are created, and a volume in the container belongs to the host. So on a mount
//! that is not the container's own, files are created with the rights of the container's root, or not at all.
//! docs/hardening.md, "Volumes", has the rule for each kind of container.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{fstatat, major, minor};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::{AccessFlags, faccessat};

use crate::apply::mount::reach;
use crate::apply::volumes::opened::OpenDirectory;
use crate::apply::volumes::rights::Rights;
use crate::container::Container;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{self, RootDir};
use crate::mount_id::{mount_id_by, mount_table, open_sibling};
use crate::mountinfo;
use crate::read_file;
use crate::sys::mount::{self, MountAttributes, MountSource};
use crate::sys::{namespace, sandbox};

/// Inode number of the initial user namespace (`PROC_USER_INIT_INO`).
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Mount points at which runtimes, or an earlier call of ours, mount a tmpfs for one container alone.
const PRIVATE_MOUNT_POINTS: [&str; 5] = ["/dev", "/run", "/proc", "/proc/driver/nvidia", "/tmp"];

/// The files that may be created on volumes: mounts that are neither the root's nor a tmpfs for the container alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnVolumes {
    /// Everything that the kernel permits, because the caller has rights only in the container's own user
    /// namespace.
    Everything,
    AsOwner,
    Nothing,
}

/// The caller's view, recorded before it leaves its mount namespace.
#[derive(Debug)]
pub(in crate::apply) struct Callers {
    /// Its mount table, read when needed.
    table: File,
    text: OnceCell<Vec<u8>>,
    /// The container's root, if the caller sees it too.
    root: Option<PathBuf>,
    /// The container's user namespace, if it differs from the caller's.
    user_namespace: Option<OwnedFd>,
    /// The container is in the caller's mount namespace, which may be an engine's session.
    is_session: bool,
    on_volumes: OnVolumes,
}

/// The rights on each mount of a container.
#[derive(Debug)]
pub(in crate::apply) struct Authority {
    callers: Option<Callers>,
    on_volumes: OnVolumes,
    root: RootDir,
    root_mount: u64,
    /// The root's path in its mount table, for messages.
    rootfs: PathBuf,
    /// This thread's `/proc/thread-self/fd`.
    descriptors: OwnedFd,
    /// Cached results by mount id; the descriptor keeps the id from being reused.
    known: RefCell<HashMap<u64, (Rights, OwnedFd)>>,
}

impl Callers {
    /// Records the caller's view, while the calling thread is still in the caller's namespaces.
    pub(in crate::apply) fn record(container: &Container, descriptors: &OwnedFd) -> Result<Self> {
        let failed = |name: &'static str| {
            move |errno| Error::file("open failed", format!("/proc/thread-self/{name}"), errno)
        };
        let table = open_sibling(descriptors.as_fd(), "mountinfo").map_err(failed("mountinfo"))?;
        let own =
            fstatat(descriptors, "../ns/user", AtFlags::empty()).map_err(failed("ns/user"))?;
        let owning = namespace::owner(container.namespace.fd.as_fd()).ok();
        let user_namespace = owning.filter(|owning| {
            inroot::identity_of(owning).is_ok_and(|found| found != inroot::identity(&own))
        });
        let is_rootless = container.namespace.is_callers && own.st_ino != FIRST_USER_NAMESPACE;
        // A createContainer hook has all capabilities of the namespace, the container's process may have none.
        let is_hook = container.process.directory().is_none();
        let is_other = Some(container.process.owner().0) != Some(nix::unistd::geteuid().as_raw());
        let on_volumes = match (is_rootless, user_namespace.is_some() || is_other) {
            (true, _) if is_hook => OnVolumes::AsOwner,
            (true, _) => OnVolumes::Everything,
            (false, true) => OnVolumes::AsOwner,
            (false, false) => OnVolumes::Nothing,
        };
        Ok(Self {
            table: table.into(),
            text: OnceCell::new(),
            root: own_root(container),
            user_namespace,
            is_session: container.namespace.is_callers && !container.namespace.is_containers,
            on_volumes,
        })
    }

    /// Returns true if files are created with other rights than the caller's.
    pub(in crate::apply) fn lowers(&self) -> bool {
        self.on_volumes == OnVolumes::AsOwner
    }

    /// Removes the permission to create files on volumes, whatever the container's owner may do there.
    pub(in crate::apply) fn spare_volumes(&mut self) {
        self.on_volumes = OnVolumes::Nothing;
    }

    /// Returns true if a filesystem is mounted in the caller's namespace, outside the container's root.
    fn shows(&self, device: u64) -> Result<bool, Errno> {
        if self.text.get().is_none() {
            let table = self.table.try_clone().map_err(|e| errno_of(&e))?;
            let _ = self.text.set(read_file::read_all(table)?);
        }
        let text = self.text.get().ok_or(Errno::EIO)?;
        let device = (major(device), minor(device));
        Ok(mountinfo::shows(text, device, self.root.as_deref()))
    }
}

/// Returns the container's root as named by the caller, if it is the same directory: mounts below it are the
/// container's.
fn own_root(container: &Container) -> Option<PathBuf> {
    let seen = RootDir::open(container.rootfs()).ok()?;
    if inroot::identity_of(&seen) != inroot::identity_of(container.process.root()) {
        return None;
    }
    inroot::name_of(seen.as_fd()).ok()
}

impl Authority {
    /// Builds the authority for a thread that has entered the container.
    pub(in crate::apply) fn new(
        callers: Callers,
        container: &Container,
        root: &RootDir,
        descriptors: &OwnedFd,
    ) -> Result<Self> {
        let on_volumes = callers.on_volumes;
        let mut authority = Self::of_root_alone(root, descriptors.as_fd())?;
        authority.on_volumes = on_volumes;
        authority.callers = Some(callers);
        authority.rootfs = container.rootfs().to_owned();
        Ok(authority)
    }

    /// Builds the authority if only the container's root is known.
    pub(in crate::apply) fn of_root_alone(
        root: &RootDir,
        descriptors: BorrowedFd<'_>,
    ) -> Result<Self> {
        let failed = |errno| Error::system("stat of the container's root failed", errno);
        let copy = |fd: BorrowedFd<'_>| {
            let copied = fd.try_clone_to_owned();
            copied.map_err(|e| failed(errno_of(&e)))
        };
        Ok(Self {
            callers: None,
            on_volumes: OnVolumes::Nothing,
            root_mount: mount_id_by(root.as_fd(), descriptors).map_err(failed)?,
            root: RootDir::from_fd(copy(root.as_fd())?),
            rootfs: PathBuf::from("/"),
            descriptors: copy(descriptors)?,
            known: RefCell::default(),
        })
    }

    /// Returns the user namespace for ldconfig.
    pub(in crate::apply) fn user_namespace(&self) -> Option<BorrowedFd<'_>> {
        let callers = self.callers.as_ref()?;
        callers.user_namespace.as_ref().map(AsFd::as_fd)
    }

    /// Returns true if ldconfig may write on mounts other than the root's: with the container's own rights, or if
    /// the caller's are no more than those.
    pub(in crate::apply) fn ldconfig_writes_everywhere(&self) -> bool {
        self.on_volumes == OnVolumes::Everything || self.user_namespace().is_some()
    }

    /// Runs an action with the rights over files that the container's root has there.
    pub(in crate::apply) fn as_containers_root<T>(
        &self,
        action: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self.on_volumes {
            OnVolumes::AsOwner => Rights::AsOwner.act(action),
            OnVolumes::Nothing | OnVolumes::Everything => action(),
        }
    }

    /// Returns the rights for creating files in a directory.
    pub(in crate::apply) fn rights(&self, directory: BorrowedFd<'_>) -> Result<Rights, Errno> {
        self.rights_on(directory, || self.mount_id(directory))
    }

    /// Does the same for a directory that stays open, with a cached result.
    pub(in crate::apply) fn rights_in(&self, directory: &OpenDirectory) -> Result<Rights, Errno> {
        let mount = || directory.mount_id(self.descriptors.as_fd());
        directory.rights(|| self.rights_on(directory.as_fd(), mount))
    }

    /// Returns true if files can be created in a directory, with the rights that apply there.
    pub(in crate::apply) fn may_change(&self, directory: &OpenDirectory) -> Result<bool, Errno> {
        let rights = self.rights_in(directory)?;
        let is_read_only = || {
            let attributes = mount::attributes(directory.as_fd());
            attributes.map(|attributes| attributes.contains(MountAttributes::RDONLY))
        };
        match rights {
            Rights::Nothing => return Ok(false),
            // Modes do not stop the caller.
            Rights::Full if self.on_volumes != OnVolumes::Everything => return Ok(!is_read_only()?),
            Rights::Full | Rights::AsOwner => {}
        }
        let may = AccessFlags::W_OK | AccessFlags::X_OK;
        match rights.act(|| faccessat(directory, ".", may, AtFlags::AT_EACCESS)) {
            Err(Errno::EROFS | Errno::EACCES) => Ok(false),
            // Old sandboxes forbid faccessat2(2) with this error.
            Err(Errno::EPERM) if rights == Rights::Full => Ok(!is_read_only()?),
            Err(Errno::EPERM) => Ok(false),
            checked => checked.map(|()| true),
        }
    }

    fn rights_on(
        &self,
        directory: BorrowedFd<'_>,
        mount: impl FnOnce() -> Result<u64, Errno>,
    ) -> Result<Rights, Errno> {
        if self.on_volumes == OnVolumes::Everything {
            return Ok(Rights::Full);
        }
        let id = mount()?;
        if id == self.root_mount {
            return Ok(Rights::Full);
        }
        if let Some((rights, _)) = self.known.borrow().get(&id) {
            return Ok(*rights);
        }
        let held = directory.try_clone_to_owned();
        let held = held.map_err(|e| errno_of(&e))?;
        let rights = self.judge(held.as_fd(), id)?;
        self.known.borrow_mut().insert(id, (rights, held));
        Ok(rights)
    }

    /// Records that a mount is ours: a tmpfs of this run or an earlier one.
    pub(in crate::apply) fn trust(&self, mount: BorrowedFd<'_>) -> Result<(), Errno> {
        let held = mount.try_clone_to_owned();
        let held = held.map_err(|e| errno_of(&e))?;
        let id = self.mount_id(mount)?;
        self.known.borrow_mut().insert(id, (Rights::Full, held));
        Ok(())
    }

    /// Does the same in what may be a tmpfs of an earlier run, wherever it is.
    pub(in crate::apply) fn rights_in_tmpfs(
        &self,
        directory: BorrowedFd<'_>,
    ) -> Result<Rights, Errno> {
        if self.is_private_tmpfs(directory)? {
            Ok(Rights::Full)
        } else {
            self.rights(directory)
        }
    }

    /// Returns the rights with which ldconfig, and its undo, may change files in a directory.
    pub(in crate::apply) fn rights_of_ldconfig(
        &self,
        directory: BorrowedFd<'_>,
    ) -> Result<Rights, Errno> {
        if self.on_volumes == OnVolumes::Everything || self.is_on_root(directory)? {
            return Ok(Rights::Full);
        }
        Ok(match self.user_namespace() {
            Some(_) if self.on_volumes == OnVolumes::AsOwner => Rights::AsOwner,
            _ => Rights::Nothing,
        })
    }

    /// Returns true if a directory is on the root's own mount.
    fn is_on_root(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(self.mount_id(directory)? == self.root_mount)
    }

    /// Returns true if two descriptors are on one mount.
    pub(in crate::apply) fn same_mount(
        &self,
        a: BorrowedFd<'_>,
        b: BorrowedFd<'_>,
    ) -> Result<bool, Errno> {
        Ok(self.mount_id(a)? == self.mount_id(b)?)
    }

    fn judge(&self, directory: BorrowedFd<'_>, id: u64) -> Result<Rights, Errno> {
        let otherwise = match self.on_volumes {
            OnVolumes::Everything => Rights::Full,
            OnVolumes::AsOwner => Rights::AsOwner,
            OnVolumes::Nothing => Rights::Nothing,
        };
        let is_own = self.is_made_for_container(directory, id)?;
        Ok(if is_own { Rights::Full } else { otherwise })
    }

    /// Returns true if a directory is on a tmpfs that a runtime mounted for this container alone.
    pub(in crate::apply) fn is_for_container_alone(
        &self,
        directory: BorrowedFd<'_>,
    ) -> Result<bool, Errno> {
        self.is_made_for_container(directory, self.mount_id(directory)?)
    }

    fn is_made_for_container(&self, directory: BorrowedFd<'_>, id: u64) -> Result<bool, Errno> {
        Ok(is_tmpfs(directory)?
            && self.is_private_mount_point(id)?
            && (self.is_private_tmpfs(directory)? || self.is_of_session(directory)?))
    }

    /// Returns true if a directory is on a tmpfs, also a part of one, that is an engine's session: only root and the
    /// container can reach it, so what is created there is nobody else's to find.
    fn is_of_session(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        let is_session = self
            .callers
            .as_ref()
            .is_some_and(|callers| callers.is_session);
        if !is_session || !self.is_on_tmpfs(directory, |_| true)? {
            return Ok(false);
        }
        let device = inroot::stat(directory)?.st_dev;
        Ok(reach::by_root_alone(device, self.descriptors.as_fd()).unwrap_or(false))
    }

    /// Returns true if a mount point is one at which runtimes mount filesystems for one container alone.
    fn is_private_mount_point(&self, id: u64) -> Result<bool, Errno> {
        for point in PRIVATE_MOUNT_POINTS {
            if let Ok(found) = self.root.resolve_directory(Path::new(point))
                && self.mount_id(found.as_fd())? == id
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if a directory is on a tmpfs, mounted from its root, that is not mounted in the caller's namespace.
    pub(in crate::apply) fn is_private_tmpfs(
        &self,
        directory: BorrowedFd<'_>,
    ) -> Result<bool, Errno> {
        let Some(callers) = &self.callers else {
            return Ok(false);
        };
        // statfs(2) cannot distinguish a devtmpfs, which belongs to the host wherever it is mounted.
        if !is_tmpfs(directory)? || !self.is_on_tmpfs(directory, |root| root == b"/")? {
            return Ok(false);
        }
        Ok(!callers.shows(inroot::stat(directory)?.st_dev)?)
    }

    /// Returns true if the mount of a directory is of a tmpfs, and of a directory of it that passes.
    fn is_on_tmpfs(
        &self,
        directory: BorrowedFd<'_>,
        passes: impl Fn(&[u8]) -> bool,
    ) -> Result<bool, Errno> {
        let of = |kind: &[u8], root: &[u8]| kind == b"tmpfs" && passes(root);
        if let Ok(MountSource { kind, root }) = mount::describe(directory) {
            return Ok(of(&kind, &root));
        }
        let (id, text) = (
            self.mount_id(directory)?,
            mount_table(self.descriptors.as_fd())?,
        );
        Ok(mountinfo::find(&text, id).is_some_and(|line| of(line.kind, line.root)))
    }

    fn mount_id(&self, fd: BorrowedFd<'_>) -> Result<u64, Errno> {
        mount_id_by(fd, self.descriptors.as_fd())
    }

    /// Describes a failure because a directory is on a volume, which it names, or on a read-only root.
    pub(in crate::apply) fn refusal(
        &self,
        operation: &str,
        path: &Path,
        directory: BorrowedFd<'_>,
    ) -> Error {
        if self.is_on_root(directory) == Ok(true) {
            return Error::file(operation, path, Errno::EROFS).hint(READ_ONLY);
        }
        let point = self.mount_point(directory);
        let point = point.unwrap_or_else(|| "its directory".into());
        let cause = format!("{} is a volume, which may not be changed", point.display());
        let error = Error::fault(ErrorKind::Volume, path.display(), cause);
        error.context(operation).hint(HINT)
    }

    /// Returns the mount point of a directory's mount in the container.
    fn mount_point(&self, directory: BorrowedFd<'_>) -> Option<PathBuf> {
        let id = self.mount_id(directory).ok()?;
        let text = mount_table(self.descriptors.as_fd()).ok()?;
        Some(self.in_container(&mountinfo::find(&text, id)?.point()))
    }

    /// Returns all mount points in the container, as far as the table can be read.
    pub(in crate::apply) fn mount_points(&self) -> Vec<PathBuf> {
        let text = mount_table(self.descriptors.as_fd()).unwrap_or_default();
        let points = mountinfo::entries(&text).map(|line| line.point());
        points.map(|point| self.in_container(&point)).collect()
    }

    fn in_container(&self, point: &Path) -> PathBuf {
        Path::new("/").join(point.strip_prefix(&self.rootfs).unwrap_or(point))
    }
}

/// The hint if the container's root is read-only.
pub(in crate::apply) const READ_ONLY: &str = "the container's root is read-only: give it a writable layer, or mount a \
     tmpfs on its /dev and /run if the image has the other mount points";

/// The hint if a volume prevents a file from being created.
const HINT: &str = "files on a volume are created only with the rights of the container's own root: \
     mount the volume elsewhere, or create the missing files on it";

/// Drops the calling thread's supplementary groups, which could have permissions that the container's owner lacks.
/// Returns false if the thread has groups but may not drop them.
pub(in crate::apply) fn drop_groups(group: u32) -> bool {
    match sandbox::set_groups(&[group]) {
        Ok(()) => true,
        Err(_) => nix::unistd::getgroups().is_ok_and(|groups| groups.is_empty()),
    }
}

fn is_tmpfs(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == TMPFS_MAGIC)
}
