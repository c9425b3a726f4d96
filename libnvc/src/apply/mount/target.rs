//! Finds and creates mount points inside the container's root, by descriptor.
//!
//! The common case takes two calls: the directory is resolved once by openat2(2) and kept, and the file is created in
//! it with `O_EXCL | O_NOFOLLOW`. If a directory is missing or a name is a link of the image, the path is walked
//! component by component with descriptors, and each link's target is resolved inside the root, so that missing
//! components can be created.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::apply::journal::Journal;
use crate::apply::replace::{NewFile, PendingLink, replace};
use crate::apply::saved_file::SavedFile;
use crate::apply::volumes::authority::{Authority, READ_ONLY};
use crate::apply::volumes::opened::OpenDirectory;
use crate::apply::volumes::rights::Rights;
use crate::container::Container;
use crate::directory::open_child;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{self, Image, RootDir, kind};
use crate::mount_id::mount_id_by;
use crate::path::ContainerPath;

/// The container's root, with the directories used so far.
pub(in crate::apply) struct Tree<'a> {
    pub(in crate::apply) root: RootDir,
    /// The root as named by the caller, for messages.
    pub(in crate::apply) rootfs: &'a Path,
    /// The rights on each mount.
    pub(in crate::apply) authority: Authority,
    umask: u32,
    /// Directories of programs and libraries, which are created readable for everyone.
    shared: [&'a ContainerPath; 3],
    directories: HashMap<PathBuf, Rc<OpenDirectory>>,
    /// The directory of a volume in which the last creation was denied.
    refused: RefCell<Option<Rc<OpenDirectory>>>,
}

/// A mount point.
pub(in crate::apply) struct Target {
    pub(in crate::apply) fd: OwnedFd,
    /// Its parent directory, on the same mount unless the target is itself a mount.
    pub(in crate::apply) directory: Rc<OpenDirectory>,
    /// Its name in that directory.
    pub(in crate::apply) name: OsString,
    /// Its stat; None if it was just created.
    pub(in crate::apply) found: Option<FileStat>,
}

/// The type of a missing mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum Leaf {
    /// An empty file with these permission bits, less the umask.
    File(u32),
    /// A directory with these permission bits, less the umask.
    Directory(u32),
    /// A parent directory: all permission bits less the umask, but its owner can always enter it.
    Parent,
}

/// How missing directories are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryCreation {
    /// As [`Leaf::Parent`], also at the target of a dangling link: as upstream does for mounts.
    ForMounts,
    /// With these permission bits, less the umask; a dangling link is an error: as in upstream's hooks.
    ForHooks(u32),
}

impl DirectoryCreation {
    fn leaf(self) -> Leaf {
        match self {
            Self::ForMounts => Leaf::Parent,
            Self::ForHooks(mode) => Leaf::Directory(mode),
        }
    }
}

/// The reason why there is no directory.
enum NoDirectory {
    /// A component of its path makes every lookup fail.
    Lookup(Errno),
    /// It could not be created.
    Creation(Errno),
}

impl<'a> Tree<'a> {
    pub(in crate::apply) fn new(
        root: RootDir,
        authority: Authority,
        container: &'a Container,
        umask: u32,
    ) -> Self {
        let layout = &container.image.layout;
        Self {
            root,
            rootfs: container.rootfs(),
            authority,
            umask,
            shared: [&layout.bins_dir, &layout.libs_dir, &layout.libs32_dir],
            directories: HashMap::new(),
            refused: RefCell::default(),
        }
    }

    /// Returns the root, and this thread's descriptors, for those who read the image.
    pub(in crate::apply) fn image<'t>(&'t self, descriptors: &'t OwnedFd) -> Image<'t> {
        Image {
            root: &self.root,
            descriptors: descriptors.as_fd(),
        }
    }

    /// Finds the mount point at a path, or creates it.
    pub(in crate::apply) fn mount_point(
        &mut self,
        at: &ContainerPath,
        leaf: Leaf,
        journal: &mut Journal<'_>,
    ) -> Result<Target> {
        let directory = self.parent(at, journal)?;
        let made = self.make(&directory, at.file_name(), leaf, journal);
        let failed = |errno| self.creation_failed(at, errno);
        match made {
            Ok(fd) => {
                return Ok(Target {
                    fd,
                    directory,
                    name: at.file_name().to_owned(),
                    found: None,
                });
            }
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let fd = open_child(directory.as_fd(), at.file_name()).map_err(failed)?;
        let stat = inroot::stat(fd.as_fd()).map_err(failed)?;
        if kind(&stat) == SFlag::S_IFLNK {
            return self
                .walk(at.as_path(), leaf, journal)
                .and_then(|target| suits(target, leaf))
                .map_err(|errno| {
                    if errno == Errno::ELOOP {
                        self.path_error(at, errno)
                    } else {
                        failed(errno)
                    }
                });
        }
        let target = Target {
            fd,
            directory,
            name: at.file_name().to_owned(),
            found: Some(stat),
        };
        suits(target, leaf).map_err(failed)
    }

    /// Finds a mount point that must exist.
    pub(in crate::apply) fn existing(
        &self,
        at: &ContainerPath,
        leaf: Leaf,
    ) -> Result<Target, Errno> {
        let directory = self.root.resolve_directory(at.parent().as_path())?;
        let directory = Rc::new(OpenDirectory::from(directory));
        let mut fd = open_child(directory.as_fd(), at.file_name())?;
        let mut stat = inroot::stat(fd.as_fd())?;
        if kind(&stat) == SFlag::S_IFLNK {
            fd = self.root.resolve(at.as_path())?;
            // It leads to a file of our own process (`/proc/self`), and a mount there vanishes with us.
            if is_on_procfs(fd.as_fd())? {
                return Err(Errno::ELOOP);
            }
            stat = inroot::stat(fd.as_fd())?;
        }
        suits(
            Target {
                fd,
                directory,
                name: at.file_name().to_owned(),
                found: Some(stat),
            },
            leaf,
        )
    }

    /// Creates a symlink; returns false if the name is taken.
    pub(in crate::apply) fn symlink(
        &mut self,
        at: &ContainerPath,
        target: &Path,
        journal: &mut Journal<'_>,
    ) -> Result<bool> {
        let directory = self.parent(at, journal)?;
        self.symlink_in(&directory, at, target, journal)
    }

    fn symlink_in(
        &self,
        directory: &Rc<OpenDirectory>,
        at: &ContainerPath,
        target: &Path,
        journal: &mut Journal<'_>,
    ) -> Result<bool> {
        let link = || nix::unistd::symlinkat(target, directory.as_fd(), at.file_name());
        match self.create(directory, at.file_name(), link) {
            Ok(((), rights)) => {
                journal.created(directory, at.file_name(), SFlag::S_IFLNK, rights);
                Ok(true)
            }
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(self.creation_failed(at, errno)),
        }
    }

    /// Creates a symlink. If its name is taken, returns one that will take the place of the file there, unless that is
    /// this link already. Directories and mount points stay.
    pub(in crate::apply) fn replacing_symlink(
        &mut self,
        at: &ContainerPath,
        target: &Path,
        descriptors: &OwnedFd,
        journal: &mut Journal<'_>,
    ) -> Result<Option<PendingLink>> {
        let missing = DirectoryCreation::ForHooks(0o755);
        let directory = self.directory(&at.parent(), missing.leaf(), missing, journal);
        let directory = directory.map_err(|error| self.no_directory(at, &error))?;
        let is_itself = self.is_in(&directory, at, target);
        if is_itself.map_err(|errno| self.creation_failed(at, errno))?
            || self.symlink_in(&directory, at, target, journal)?
        {
            return Ok(None);
        }
        let made = self.pending_in(&directory, at, target, descriptors, journal);
        made.map_err(|errno| self.creation_failed(at, errno))
    }

    /// Returns true if an absolute target is this name in this directory, by another path: a link of the image leads
    /// there.
    fn is_in(
        &self,
        directory: &Rc<OpenDirectory>,
        at: &ContainerPath,
        target: &Path,
    ) -> Result<bool, Errno> {
        if !target.is_absolute() || target.file_name() != Some(at.file_name()) {
            return Ok(false);
        }
        let above = ContainerPath::new(target).parent();
        let Ok(above) = self.root.resolve_directory(above.as_path()) else {
            return Ok(false);
        };
        Ok(inroot::identity_of(above)? == inroot::identity_of(directory.as_fd())?)
    }

    fn pending_in(
        &self,
        directory: &Rc<OpenDirectory>,
        at: &ContainerPath,
        target: &Path,
        descriptors: &OwnedFd,
        journal: &mut Journal<'_>,
    ) -> Result<Option<PendingLink>, Errno> {
        let found = open_child(directory.as_fd(), at.file_name())?;
        match kind(&inroot::stat(found.as_fd())?) {
            SFlag::S_IFLNK if readlinkat(&found, "")? == target.as_os_str() => return Ok(None),
            SFlag::S_IFDIR => return Err(Errno::EISDIR),
            _ => {}
        }
        // On a volume the container's owner may replace the file, but it is not this container's alone.
        if self.authority.rights_in(directory)? != Rights::Full {
            self.refused.replace(Some(Rc::clone(directory)));
            return Err(Errno::EPERM);
        }
        let mount = mount_id_by(found.as_fd(), descriptors.as_fd())?;
        if mount != directory.mount_id(descriptors.as_fd())? {
            return Err(Errno::EBUSY);
        }
        for temporary in PendingLink::temporary_names() {
            let name = temporary.as_os_str();
            let link = || nix::unistd::symlinkat(target, directory.as_fd(), name);
            let ((), rights) = match self.create(directory, name, link) {
                Err(Errno::EEXIST) => continue,
                made => made?,
            };
            journal.created(directory, name, SFlag::S_IFLNK, rights);
            return Ok(Some(PendingLink {
                directory: Rc::clone(directory),
                name: at.file_name().to_owned(),
                temporary,
                rights,
                place: at.below(self.rootfs),
            }));
        }
        Err(Errno::EEXIST)
    }

    /// Writes a file, in place of one of its name.
    pub(in crate::apply) fn write(
        &mut self,
        directory: &ContainerPath,
        file: &NewFile,
        descriptors: &OwnedFd,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        let at = directory.join(&file.name);
        let missing = DirectoryCreation::ForHooks(file.above);
        let opened = self.directory(directory, missing.leaf(), missing, journal);
        let opened = opened.map_err(|error| self.no_directory(&at, &error))?;
        let place = at.below(self.rootfs);
        let failed = |errno| Error::file("file creation failed", &place, errno);
        let rights = self.authority.rights_in(&opened).map_err(failed)?;
        let parent = opened.as_fd().try_clone_to_owned();
        let parent = parent.map_err(|error| failed(errno_of(&error)))?;
        let kept = SavedFile::take(parent, rights, &file.name, descriptors.as_fd());
        let kept = kept.map_err(failed)?;
        let mode = Mode::from_bits_truncate(file.mode);
        log::info!("writing {}", place.display());
        replace(kept, &self.authority, &file.content, mode, &place, journal)
    }

    fn creation_failed(&self, path: &ContainerPath, errno: Errno) -> Error {
        let (operation, place) = ("file creation failed", path.below(self.rootfs));
        if let Some(directory) = self.refused.take() {
            return (self.authority).refusal(operation, &place, directory.as_fd());
        }
        match errno {
            Errno::EROFS => Error::file(operation, place, errno).hint(READ_ONLY),
            Errno::EBUSY => {
                let cause = "something is mounted there, and stays";
                Error::fault(ErrorKind::Volume, place.display(), cause).context(operation)
            }
            _ => Error::file(operation, place, errno),
        }
    }

    /// Drops cached directories: some were removed.
    pub(in crate::apply) fn forget(&mut self) {
        self.directories.clear();
    }

    /// Applies the umask to permission bits.
    pub(in crate::apply) fn masked(&self, mode: u32) -> Mode {
        Mode::from_bits_truncate(mode & 0o777 & !self.umask)
    }

    /// Opens the parent directory of `at`; creates missing directories.
    fn parent(
        &mut self,
        at: &ContainerPath,
        journal: &mut Journal<'_>,
    ) -> Result<Rc<OpenDirectory>> {
        let path = at.parent();
        if let Some(fd) = self.directories.get(path.as_path()) {
            return Ok(Rc::clone(fd));
        }
        // Upstream creates these separately, and all others together with the file, which its errors name.
        let shared = self.shared.contains(&&path);
        let (blamed, leaf) = if shared {
            (&path, Leaf::Directory(0o755))
        } else {
            (at, Leaf::Parent)
        };
        self.directory(&path, leaf, DirectoryCreation::ForMounts, journal)
            .map_err(|error| self.no_directory(blamed, &error))
    }

    fn no_directory(&self, blamed: &ContainerPath, error: &NoDirectory) -> Error {
        match error {
            NoDirectory::Lookup(errno) => self.path_error(blamed, *errno),
            NoDirectory::Creation(errno) => self.creation_failed(blamed, *errno),
        }
    }

    /// Opens a directory, or creates it in its parent, which is looked up in the same way, and created as
    /// `missing` says: each missing directory costs three calls, however deep it is.
    fn directory(
        &mut self,
        path: &ContainerPath,
        leaf: Leaf,
        missing: DirectoryCreation,
        journal: &mut Journal<'_>,
    ) -> Result<Rc<OpenDirectory>, NoDirectory> {
        if let Some(fd) = self.directories.get(path.as_path()) {
            return Ok(Rc::clone(fd));
        }
        let fd = match self.root.resolve_directory(path.as_path()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => {
                let parent = self.directory(&path.parent(), missing.leaf(), missing, journal)?;
                let made = match self.make(&parent, path.file_name(), leaf, journal) {
                    // A dangling link, or another process has just created it.
                    Err(Errno::EEXIST) if missing != DirectoryCreation::ForMounts => self
                        .root
                        .resolve_directory(path.as_path())
                        .map_err(|_| Errno::ENOTDIR),
                    Err(Errno::EEXIST) => {
                        let walked = self.walk(path.as_path(), leaf, journal);
                        walked
                            .and_then(|target| suits(target, leaf))
                            .map(|target| target.fd)
                    }
                    made => made,
                };
                made.map_err(NoDirectory::Creation)?
            }
            Err(errno) => return Err(NoDirectory::Lookup(errno)),
        };
        let fd: Rc<OpenDirectory> = Rc::new(fd.into());
        self.directories
            .insert(path.as_path().to_owned(), Rc::clone(&fd));
        Ok(fd)
    }

    /// Creates a file in a directory, with the rights that apply there; `EEXIST` if the name is taken.
    fn create<T>(
        &self,
        dir: &Rc<OpenDirectory>,
        name: &OsStr,
        action: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<(T, Rights), Errno> {
        let rights = self.authority.rights_in(dir)?;
        match rights.act(action) {
            Ok(made) => Ok((made, rights)),
            // Without search permission, or without a lookup.
            Err(Errno::EPERM | Errno::EACCES) if rights != Rights::Full => {
                match open_child(dir.as_fd(), name) {
                    Err(Errno::ENOENT) => {
                        self.refused.replace(Some(Rc::clone(dir)));
                        Err(Errno::EPERM)
                    }
                    found => found.and(Err(Errno::EEXIST)),
                }
            }
            Err(errno) => Err(errno),
        }
    }

    /// Creates the last component; `EEXIST` if the name is taken.
    pub(super) fn make(
        &self,
        dir: &Rc<OpenDirectory>,
        name: &OsStr,
        leaf: Leaf,
        journal: &mut Journal<'_>,
    ) -> Result<OwnedFd, Errno> {
        match leaf {
            Leaf::File(mode) => {
                let flags = OFlag::O_CREAT
                    | OFlag::O_EXCL
                    | OFlag::O_NOFOLLOW
                    | OFlag::O_RDONLY
                    | OFlag::O_CLOEXEC;
                let open = || openat(dir.as_fd(), name, flags, self.masked(mode));
                let (fd, rights) = self.create(dir, name, open)?;
                journal.created(dir, name, SFlag::S_IFREG, rights);
                Ok(fd)
            }
            Leaf::Directory(mode) => self.make_directory(dir, name, self.masked(mode), journal),
            Leaf::Parent => {
                let mode = self.masked(0o777) | Mode::S_IWUSR | Mode::S_IXUSR;
                self.make_directory(dir, name, mode, journal)
            }
        }
    }

    fn make_directory(
        &self,
        dir: &Rc<OpenDirectory>,
        name: &OsStr,
        mode: Mode,
        journal: &mut Journal<'_>,
    ) -> Result<OwnedFd, Errno> {
        let ((), rights) = self.create(dir, name, || mkdirat(dir.as_fd(), name, mode))?;
        journal.created(dir, name, SFlag::S_IFDIR, rights);
        open_child(dir.as_fd(), name)
    }

    fn path_error(&self, path: &ContainerPath, errno: Errno) -> Error {
        // Two slashes, as upstream joins them.
        Error::file(
            "path error",
            format!("{}/{path}", self.rootfs.display()),
            errno,
        )
    }
}

pub(super) fn is_on_procfs(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == PROC_SUPER_MAGIC)
}

/// Describes a mount point that has been renamed or removed since it was found.
pub(in crate::apply) fn replaced(place: &Path) -> Error {
    let error = Error::new(ErrorKind::NotFound, "mount operation failed").of(place.display());
    error.because("its mount point has been replaced")
}

/// Checks that a mount of a leaf's type fits on a target: directories only on directories.
fn suits(target: Target, leaf: Leaf) -> Result<Target, Errno> {
    let Some(stat) = &target.found else {
        return Ok(target);
    };
    match (leaf, kind(stat) == SFlag::S_IFDIR) {
        (Leaf::File(_), true) => Err(Errno::EISDIR),
        (Leaf::Directory(_) | Leaf::Parent, false) => Err(Errno::ENOTDIR),
        _ => Ok(target),
    }
}
