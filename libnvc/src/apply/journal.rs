//! Records every effect on the container, and undoes them in reverse order if a later one fails.
//!
//! Undo uses the descriptors with which the effects were made, never a path that the image could have changed in
//! between. Existing files keep their name, type, mode, owner, content and links.

use std::ffi::{OsStr, OsString};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::stat::{SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, fchdir, unlinkat};

use crate::apply::mount::by_name;
use crate::apply::volumes::opened::OpenDirectory;
use crate::apply::volumes::rights::Rights;
use crate::error::Error;
use crate::inroot;
use crate::sys::descriptors;

/// The effects so far, oldest first. If it is neither [committed](Self::commit) nor [undone](Self::undo), because of a
/// panic, dropping it undoes them.
pub(super) struct Journal<'a> {
    effects: Vec<Effect>,
    /// This thread's `/proc/thread-self/fd`: umount2(2) only takes names, and the container's own /proc may not have
    /// our descriptors.
    descriptors: &'a OwnedFd,
}

/// A position in the journal, as the number of effects before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

/// Undoes an effect with its own record.
pub(super) type Undo = Box<dyn FnOnce() -> Result<(), Error>>;

enum Effect {
    /// A mount was attached; the descriptor refers to its root.
    Mounted(OwnedFd),
    Created(CreatedFile),
    /// A shared mount was made a slave of its peers; the descriptor refers to its root.
    MadeSlave(OwnedFd),
    /// An effect that can undo itself.
    Other(Undo),
    /// An effect that is undone in any case.
    Temporary(Undo),
    /// A file of the image has another name until it is clear that it is not needed again.
    SetAside {
        put_back: Undo,
        remove: Undo,
    },
}

/// A file, link or directory was created.
struct CreatedFile {
    directory: Rc<OpenDirectory>,
    name: OsString,
    kind: SFlag,
    /// The rights with which it was created, and is removed.
    rights: Rights,
}

impl<'a> Journal<'a> {
    pub(super) fn new(descriptors: &'a OwnedFd) -> Self {
        Self {
            effects: Vec::new(),
            descriptors,
        }
    }

    pub(super) fn mounted(&mut self, mount: OwnedFd) {
        self.effects.push(Effect::Mounted(mount));
    }

    pub(super) fn created(
        &mut self,
        directory: &Rc<OpenDirectory>,
        name: &OsStr,
        kind: SFlag,
        rights: Rights,
    ) {
        self.effects.push(Effect::Created(CreatedFile {
            directory: Rc::clone(directory),
            name: name.to_owned(),
            kind,
            rights,
        }));
    }

    pub(super) fn made_slave(&mut self, mount: OwnedFd) {
        self.effects.push(Effect::MadeSlave(mount));
    }

    pub(super) fn other(&mut self, undo: Undo) {
        self.effects.push(Effect::Other(undo));
    }

    /// Records an effect that is undone on success too.
    pub(super) fn temporary(&mut self, undo: Undo) {
        self.effects.push(Effect::Temporary(undo));
    }

    /// Records that a file of the image was set aside: it is put back, or removed if the effects stay.
    pub(super) fn set_aside(&mut self, put_back: Undo, remove: Undo) {
        self.effects.push(Effect::SetAside { put_back, remove });
    }

    /// Returns the current position, for [`undo_to`](Self::undo_to).
    pub(super) fn mark(&self) -> Mark {
        Mark(self.effects.len())
    }

    /// Returns the root of the mount that was attached since a mark.
    pub(super) fn mount_since(&self, mark: Mark) -> Option<&OwnedFd> {
        let effects = self.effects.iter().skip(mark.0);
        effects.rev().find_map(|effect| match effect {
            Effect::Mounted(root) => Some(root),
            _ => None,
        })
    }

    /// Undoes the effects since a mark, the latest first; returns the failures.
    pub(super) fn undo_to(&mut self, mark: Mark) -> Vec<Error> {
        let mut errors = Vec::new();
        let mut in_use = Vec::new();
        let since = mark.0.min(self.effects.len());
        for effect in self.effects.split_off(since).into_iter().rev() {
            match effect.undo(self.descriptors) {
                Ok(left) => in_use.extend(left),
                Err(error) => errors.push(error),
            }
        }
        // Entries of a directory that we created may be gone with an earlier effect: ldconfig's, which ran in parallel.
        errors.extend(in_use.iter().filter_map(|created| created.remove().err()));
        errors
    }

    /// Keeps the effects, except temporary ones, and removes files that were set aside.
    ///
    /// # Errors
    /// A temporary effect cannot be undone.
    pub(super) fn commit(mut self) -> Result<(), Error> {
        let effects = mem::take(&mut self.effects);
        let mut mounts = Vec::new();
        let mut result = Ok(());
        for effect in effects.into_iter().rev() {
            match effect {
                Effect::Mounted(mount) => mounts.push(mount),
                Effect::Temporary(undo) => result = result.and(undo()),
                Effect::SetAside { remove, .. } => {
                    // Not a failure: everything is done, and the leftover has a temporary name of ours.
                    if let Err(error) = remove() {
                        log::warn!("{}", error.message());
                    }
                }
                Effect::Created(_) | Effect::MadeSlave(_) | Effect::Other(_) => {}
            }
        }
        descriptors::close_all(mounts);
        result
    }

    /// Undoes everything, the latest first; returns the failures.
    pub(super) fn undo(mut self) -> Vec<Error> {
        self.undo_to(Mark(0))
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        for error in self.undo_to(Mark(0)) {
            log::warn!("{}", error.message());
        }
    }
}

impl Effect {
    /// Undoes the effect, or returns a file that is in use.
    fn undo(self, descriptors: &OwnedFd) -> Result<Option<CreatedFile>, Error> {
        match self {
            Self::Mounted(mount) => {
                // MNT_DETACH without UMOUNT_NOFOLLOW: the name is a magic link, and the container may use the mount.
                fchdir(descriptors)
                    .and_then(|()| {
                        umount2(mount.as_raw_fd().to_string().as_str(), MntFlags::MNT_DETACH)
                    })
                    .map_err(|errno| Error::system("unmounting failed", errno))
            }
            Self::Created(created) => {
                let gone = created.remove()?;
                return Ok((!gone).then_some(created));
            }
            Self::MadeSlave(mount) => {
                by_name::set_propagation(mount.as_fd(), MsFlags::MS_SHARED, descriptors)
                    .map_err(|errno| Error::system("making a mount shared again failed", errno))
            }
            Self::Other(undo) | Self::Temporary(undo) => undo(),
            Self::SetAside { put_back, .. } => put_back(),
        }
        .map(|()| None)
    }
}

impl CreatedFile {
    /// Removes it, if it is still as created: an empty file, a link, an empty directory. Returns false if it is in use.
    fn remove(&self) -> Result<bool, Error> {
        self.rights
            .act(|| self.try_to_remove())
            .map_err(|errno| Error::file("file removal failed", &self.name, errno))
    }

    fn try_to_remove(&self) -> Result<bool, Errno> {
        let name = self.name.as_os_str();
        let found = match fstatat(self.directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(true),
            Err(errno) => return Err(errno),
        };
        let is_ours = inroot::kind(&found) == self.kind
            && (self.kind != SFlag::S_IFREG || found.st_size == 0);
        if !is_ours {
            return Ok(true);
        }
        let flag = if self.kind == SFlag::S_IFDIR {
            UnlinkatFlags::RemoveDir
        } else {
            UnlinkatFlags::NoRemoveDir
        };
        match unlinkat(self.directory.as_fd(), name, flag) {
            Err(Errno::ENOENT) => Ok(true),
            // Another process uses it.
            Err(Errno::ENOTEMPTY | Errno::EBUSY) => Ok(false),
            done => done.map(|()| true),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn effects_before_a_mark_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let descriptors = File::open("/proc/thread-self/fd").unwrap().into();
        let directory = OwnedFd::from(File::open(scratch.path()).unwrap());
        let directory = Rc::new(OpenDirectory::from(directory));
        let mut journal = Journal::new(&descriptors);
        let make = |journal: &mut Journal<'_>, name: &str| {
            fs::create_dir(scratch.path().join(name)).unwrap();
            journal.created(&directory, OsStr::new(name), SFlag::S_IFDIR, Rights::Full);
        };
        make(&mut journal, "before");
        let mark = journal.mark();
        make(&mut journal, "after");
        assert!(journal.undo_to(mark).is_empty());
        make(&mut journal, "later");
        let there = |name: &str| scratch.path().join(name).exists();
        assert!(there("before") && !there("after") && there("later"));
        assert!(journal.undo_to(mark).is_empty());
        assert!(there("before") && !there("later"));
        assert!(journal.undo().is_empty());
        assert!(!there("before"));
    }

    #[test]
    fn temporary_effects_are_undone() {
        let scratch = tempfile::tempdir().unwrap();
        let descriptors = File::open("/proc/thread-self/fd").unwrap().into();
        let mut journal = Journal::new(&descriptors);
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        let in_it = file.clone();
        journal.temporary(Box::new(move || {
            fs::remove_file(in_it).map_err(|_| Error::system("removal", Errno::EIO))
        }));
        journal.commit().unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn directories_that_others_used_go_when_those_are_gone() {
        let scratch = tempfile::tempdir().unwrap();
        let (ours, theirs) = (
            scratch.path().join("ours"),
            scratch.path().join("ours/theirs"),
        );
        let descriptors = File::open("/proc/thread-self/fd").unwrap().into();
        let mut journal = Journal::new(&descriptors);
        let in_it = theirs.clone();
        journal.other(Box::new(move || {
            fs::remove_dir(in_it).map_err(|_| Error::system("removal", Errno::EIO))
        }));
        fs::create_dir(&ours).unwrap();
        let directory = OwnedFd::from(File::open(scratch.path()).unwrap());
        let directory = Rc::new(OpenDirectory::from(directory));
        journal.created(&directory, OsStr::new("ours"), SFlag::S_IFDIR, Rights::Full);
        fs::create_dir(&theirs).unwrap();
        assert!(journal.undo().is_empty());
        assert!(!ours.exists());
    }
}
