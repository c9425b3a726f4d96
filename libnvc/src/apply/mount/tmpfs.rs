//! Mounts small tmpfs filesystems that are complete when they appear, and extends those of an earlier run.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::SFlag;
use nix::unistd::{UnlinkatFlags, ftruncate, unlinkat};

use crate::apply::journal::Journal;
use crate::apply::mount::attach::Attacher;
use crate::apply::mount::by_name;
use crate::apply::mount::legacy;
use crate::apply::mount::target::{Target, Tree, replaced};
use crate::apply::steps::TmpfsFile;
use crate::apply::volumes::rights::Rights;
use crate::directory::open_child;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::inroot::{self, kind};
use crate::plan::profile;
use crate::read_file;
use crate::sys::mount::{self, MountAttributes};

/// Attributes of our tmpfs mounts.
const ATTRIBUTES: MountAttributes = MountAttributes::NODEV
    .union(MountAttributes::NOSUID)
    .union(MountAttributes::NOEXEC);

/// Size limit of an earlier run's file; the largest has some hundred bytes for each GPU.
const MAX_BYTES: u64 = 1 << 20;

/// A tmpfs to fill and attach.
pub(in crate::apply) struct NewTmpfs<'a> {
    /// The detached mount; None on kernels without detached mounts.
    mount: Option<OwnedFd>,
    /// Permission bits of its root.
    pub(in crate::apply) mode: u32,
    files: Cow<'a, [TmpfsFile]>,
}

/// A tmpfs with an application profile, to attach.
pub(in crate::apply) struct NewProfile<'a> {
    tmpfs: NewTmpfs<'a>,
    minors: &'a [u32],
}

impl<'a> NewProfile<'a> {
    /// Creates it; it has a profile only if GPUs are known.
    pub(in crate::apply) fn detached(minors: &'a [u32]) -> Result<Self, Errno> {
        let files = match minors {
            [] => Vec::new(),
            _ => vec![profile_file(profile::text(&profile::mask(minors)))],
        };
        let tmpfs = NewTmpfs::detached(profile::MODE, files)?;
        Ok(Self { tmpfs, minors })
    }

    /// Returns the permission bits of its root.
    pub(in crate::apply) fn mode(&self) -> u32 {
        self.tmpfs.mode
    }

    /// Mounts it on a target, or adds the GPUs to the one that an earlier run mounted there.
    pub(in crate::apply) fn mount(
        self,
        target: &Target,
        place: &Path,
        tree: &Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        let is_there = is_ours(target, tree, attacher).map_err(failed(place))?;
        match (is_there, self.minors) {
            (false, _) => self.tmpfs.mount(target, place, tree, attacher, journal),
            (true, []) => Ok(()),
            (true, minors) => show_in_profile(target, minors, place, tree, attacher, journal),
        }
    }
}

impl<'a> NewTmpfs<'a> {
    /// Creates an empty one.
    pub(in crate::apply) fn detached(
        mode: u32,
        files: impl Into<Cow<'a, [TmpfsFile]>>,
    ) -> Result<Self, Errno> {
        let mount = match mount::new_tmpfs(mode, ATTRIBUTES) {
            Err(Errno::ENOSYS) => None,
            done => Some(done?),
        };
        let files = files.into();
        Ok(Self { mount, mode, files })
    }

    /// Mounts it on a target, or completes the one that an earlier run mounted there.
    pub(in crate::apply) fn mount(
        self,
        target: &Target,
        place: &Path,
        tree: &Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        if is_ours(target, tree, attacher).map_err(failed(place))? {
            log::debug!("a tmpfs is mounted at {} already", place.display());
            let trusted = tree.authority.trust(target.fd.as_fd());
            trusted.map_err(failed(place))?;
            let directory = target.directory_itself()?;
            return self.files.iter().try_for_each(|file| {
                put(
                    &directory,
                    Rights::Full,
                    file,
                    place,
                    tree,
                    attacher,
                    journal,
                )
            });
        }
        self.attach(target, place, tree, attacher, journal)
    }

    /// Mounts it on a target.
    fn attach(
        self,
        target: &Target,
        place: &Path,
        tree: &Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        log::info!("mounting tmpfs at {}", place.display());
        let fill = |mount: &OwnedFd| {
            let create = |file| {
                create(mount, file, tree).map_err(|errno| creation_failed(place, file, errno))
            };
            self.files.iter().try_for_each(create)
        };
        if let Some(mount) = self.mount {
            fill(&mount)?;
            tree.authority.trust(mount.as_fd()).map_err(failed(place))?;
            match attacher.attach(mount, target, place, journal) {
                // A sandbox that allows making filesystems, but not attaching them.
                Err(error) if error.errno() == Some(Errno::ENOSYS) => {}
                done => return done,
            }
        }
        attacher.confine(target, place, journal)?;
        let failed = |errno| Error::file("mount operation failed", place, errno);
        let mount = legacy::tmpfs(self.mode, target, attacher, place, ATTRIBUTES)?;
        match mount.try_clone() {
            Ok(again) => journal.mounted(again),
            Err(_) => {
                journal.mounted(mount);
                return Err(failed(Errno::EMFILE));
            }
        }
        tree.authority.trust(mount.as_fd()).map_err(failed)?;
        fill(&mount)
    }
}

/// A file to mount over another one, which cannot be replaced because procfs has it.
pub(in crate::apply) struct NewCover<'a> {
    tmpfs: NewTmpfs<'a>,
    name: &'a str,
}

impl<'a> NewCover<'a> {
    /// Creates the file's tmpfs.
    pub(in crate::apply) fn detached(file: &'a TmpfsFile) -> Result<Self, Errno> {
        let tmpfs = NewTmpfs::detached(0o555, std::slice::from_ref(file))?;
        let name = &file.name;
        Ok(Self { tmpfs, name })
    }

    /// Mounts it on a target in a directory. Only a mount that is attached can be cloned (before Linux 6.15), so the tmpfs
    /// is briefly attached to the directory; only the mount of its one file stays.
    pub(in crate::apply) fn mount(
        self,
        target: &Target,
        directory: &Target,
        place: &Path,
        tree: &Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        // Before the mark: a mount that has been made a slave stays one.
        attacher.confine(directory, place, journal)?;
        attacher.confine(target, place, journal)?;
        let mark = journal.mark();
        self.tmpfs
            .attach(directory, place, tree, attacher, journal)?;
        let root = journal.mount_since(mark);
        let root = root.ok_or_else(|| failed(place)(Errno::ENOENT))?;
        let file = open_child(root.as_fd(), OsStr::new(self.name)).map_err(failed(place))?;
        let attributes = ATTRIBUTES | MountAttributes::RDONLY;
        let clone = mount::clone_mount(file.as_fd(), 0).and_then(|clone| {
            let (nothing, private) = (MountAttributes::empty(), Some(libc::MS_PRIVATE));
            mount::set_attributes(clone.as_fd(), attributes, nothing, private)?;
            Ok(clone)
        });
        let detach = |journal: &mut Journal<'_>| {
            let failure = journal.undo_to(mark).into_iter().next();
            failure.map_or(Ok(()), Err)
        };
        match clone {
            Err(Errno::ENOSYS) => {
                let attributes = (attributes, MountAttributes::empty());
                let mount = legacy::file(file.as_fd(), place, target, attacher, place, attributes)?;
                let detached = detach(journal);
                journal.mounted(mount);
                detached
            }
            clone => {
                let mount = clone.map_err(failed(place))?;
                detach(journal)?;
                attacher.attach(mount, target, place, journal)
            }
        }
    }
}

/// Makes one of ours read-only, with all mount points in it.
pub(in crate::apply) fn seal(
    target: &Target,
    place: &Path,
    tree: &Tree<'_>,
    attacher: &Attacher<'_>,
    journal: &mut Journal<'_>,
) -> Result<()> {
    if !is_ours(target, tree, attacher).map_err(failed(place))? {
        return Err(replaced(place));
    }
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| failed(place)(Errno::EMFILE));
    let (top, descriptors) = (copy(&target.fd)?, copy(attacher.descriptors)?);
    by_name::make_read_only(top.as_fd(), true, &descriptors).map_err(failed(place))?;
    let undone = place.to_owned();
    journal.other(Box::new(move || {
        by_name::make_read_only(top.as_fd(), false, &descriptors)
            .map_err(|errno| Error::file("mount operation failed", undone, errno))
    }));
    Ok(())
}

/// Adds GPUs to the application profile of an earlier run.
fn show_in_profile(
    target: &Target,
    minors: &[u32],
    place: &Path,
    tree: &Tree<'_>,
    attacher: &Attacher<'_>,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let directory = target.directory_itself()?;
    let rights = tree.authority.rights_in_tmpfs(directory.as_fd());
    let rights = rights.map_err(failed(place))?;
    let old = match Earlier::open(&directory, profile::FILE, attacher.descriptors) {
        Ok((_, old)) => old,
        Err(Errno::ENOENT) => Vec::new(),
        Err(errno) => return Err(Error::file("open failed", place.join(profile::FILE), errno)),
    };
    let content = if old.is_empty() {
        profile::text(&profile::mask(minors))
    } else {
        let old = String::from_utf8(old).ok();
        let mut minors = minors.iter();
        let new = old.and_then(|old| {
            minors.try_fold(old, |text, minor| profile::with_visible(&text, *minor))
        });
        new.ok_or_else(|| {
            let error = Error::new(ErrorKind::Malformed, "invalid application profile");
            error.of(place.join(profile::FILE).display())
        })?
    };
    let file = profile_file(content);
    put(&directory, rights, &file, place, tree, attacher, journal)
}

fn failed(place: &Path) -> impl Fn(Errno) -> Error {
    move |errno| Error::file("mount operation failed", place, errno)
}

/// Returns the file with an application profile.
pub(in crate::apply) fn profile_file(content: String) -> TmpfsFile {
    TmpfsFile {
        name: profile::FILE.into(),
        mode: profile::MODE,
        content,
    }
}

impl Target {
    /// Returns a descriptor of the target directory, for the journal.
    fn directory_itself(&self) -> Result<Rc<OwnedFd>> {
        self.fd
            .try_clone()
            .map(Rc::new)
            .map_err(|_| Error::system("open failed", Errno::EMFILE))
    }
}

/// Returns true if a tmpfs like ours is mounted on a target. One that the caller has mounted too is a volume.
fn is_ours(target: &Target, tree: &Tree<'_>, attacher: &Attacher<'_>) -> Result<bool, Errno> {
    if !attacher.is_mount_with(target, ATTRIBUTES) {
        return Ok(false);
    }
    tree.authority.is_private_tmpfs(target.fd.as_fd())
}

/// Ensures the content of a file in a mounted tmpfs: creates it, rewrites it, or leaves it unchanged.
fn put(
    dir: &Rc<OwnedFd>,
    rights: Rights,
    file: &TmpfsFile,
    place: &Path,
    tree: &Tree<'_>,
    attacher: &Attacher<'_>,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let failed = |errno| creation_failed(place, file, errno);
    match rights.act(|| create(dir, file, tree)) {
        Ok(()) => {
            let (dir, name) = (Rc::clone(dir), file.name.clone());
            journal.other(Box::new(move || {
                let remove = || unlinkat(&*dir, name.as_str(), UnlinkatFlags::NoRemoveDir);
                rights
                    .act(remove)
                    .map_err(|errno| Error::file("file removal failed", name, errno))
            }));
            return Ok(());
        }
        Err(Errno::EEXIST) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let (earlier, old) = Earlier::open(dir, &file.name, attacher.descriptors).map_err(failed)?;
    if old == file.content.as_bytes() {
        return Ok(());
    }
    // A file that is mounted there is not an earlier run's.
    let is_in_it = tree
        .authority
        .same_mount(earlier.found.as_fd(), dir.as_fd());
    if !is_in_it.map_err(failed)? {
        return Err(failed(Errno::EXDEV));
    }
    let reopen = || earlier.reopen(OFlag::O_RDWR);
    let mut open = rights.act(reopen).map_err(failed)?;
    let again = open.try_clone().map_err(|_| failed(Errno::EMFILE))?;
    let name = place.join(&file.name);
    journal.other(Box::new(move || {
        let mut again = again;
        rewrite(&mut again, &old)
            .map_err(|errno| Error::file("restoring a file failed", name, errno))
    }));
    rewrite(&mut open, file.content.as_bytes()).map_err(failed)
}

fn create(directory: &impl AsFd, file: &TmpfsFile, tree: &Tree<'_>) -> Result<(), Errno> {
    let flags =
        OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let fd = openat(
        directory.as_fd(),
        file.name.as_str(),
        flags,
        tree.masked(file.mode),
    )?;
    File::from(fd)
        .write_all(file.content.as_bytes())
        .map_err(|e| errno_of(&e))
}

/// A file of an earlier run, by reference. The container may have replaced it by a file of another type or any size, or
/// may do so at any moment.
struct Earlier<'a> {
    found: OwnedFd,
    descriptors: &'a OwnedFd,
}

impl<'a> Earlier<'a> {
    /// Finds and reads it.
    fn open(
        directory: &OwnedFd,
        name: &str,
        descriptors: &'a OwnedFd,
    ) -> Result<(Self, Vec<u8>), Errno> {
        let found = open_child(directory.as_fd(), name.as_ref())?;
        // Checked first, because opening a device can have side effects.
        if kind(&inroot::stat(found.as_fd())?) != SFlag::S_IFREG {
            return Err(Errno::EEXIST);
        }
        let file = Self { found, descriptors };
        let bytes = read_file::read(file.reopen(OFlag::O_RDONLY)?, MAX_BYTES + 1)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Errno::EFBIG);
        }
        Ok((file, bytes))
    }

    /// Reopens that same file, even if its name now leads to another.
    fn reopen(&self, flags: OFlag) -> Result<File, Errno> {
        inroot::reopen(self.descriptors.as_fd(), self.found.as_fd(), flags).map(File::from)
    }
}

fn rewrite(file: &mut File, content: &[u8]) -> Result<(), Errno> {
    file.rewind().map_err(|e| errno_of(&e))?;
    file.write_all(content).map_err(|e| errno_of(&e))?;
    let length = i64::try_from(content.len()).map_err(|_| Errno::EFBIG)?;
    ftruncate(file, length)
}

fn creation_failed(place: &Path, file: &TmpfsFile, errno: Errno) -> Error {
    Error::file("file creation failed", place.join(&file.name), errno)
}
