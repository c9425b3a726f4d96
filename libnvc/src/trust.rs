//! Decides whether a user other than root and the caller can exchange files in a directory.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{FileStat, Mode};

use crate::host::{in_user_namespace, overflow_uid};

mod accounts;
mod acl;

use accounts::has_other_members;
pub use accounts::name;
use acl::Writer;

/// A directory, link or file that another user can exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// Its path.
    pub at: PathBuf,
    /// Who can.
    pub who: Who,
}

/// Who can exchange or change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Its owner.
    Owner(u32),
    /// A user that its ACL names.
    User(u32),
    /// A group.
    Group(u32),
    /// Every user.
    Everybody,
}

/// The caller's identity.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    uid: u32,
    gid: u32,
    /// Another user and group that are trusted like root.
    also: (Option<u32>, Option<u32>),
    /// A directory of all users is not trusted even if it is sticky.
    trusts_no_shared: bool,
}

impl Caller {
    /// Returns that of this process.
    pub fn current() -> Self {
        Self {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            also: (None, None),
            trusts_no_shared: false,
        }
    }

    /// Counts a sticky directory of all users as theirs.
    #[must_use]
    pub fn without_shared(self) -> Self {
        let trusts_no_shared = true;
        Self {
            trusts_no_shared,
            ..self
        }
    }

    /// Trusts those who may change a file, too.
    #[must_use]
    pub fn or_who_may_change(self, file: &Metadata) -> Self {
        let is_the_groups = Mode::from_bits_truncate(file.mode()).contains(Mode::S_IWGRP);
        let also = (Some(file.uid()), is_the_groups.then_some(file.gid()));
        Self { also, ..self }
    }

    /// Returns who else may change a file of a directory, or exchange it for another.
    pub fn file(
        self,
        at: &Path,
        directory: BorrowedFd<'_>,
        name: &OsStr,
        stat: &FileStat,
    ) -> Option<Exposed> {
        // The sticky bit of a file protects nothing.
        let mode = Mode::from_bits_truncate(stat.st_mode) - Mode::S_ISVTX;
        self.writer(stat, mode, || acl::writers(directory, name))
            .map(|who| Exposed { at: at.into(), who })
    }

    /// Returns who else may create and rename files in a directory.
    ///
    /// In a sticky directory, no other user can: its files are judged one by one, by [`Caller::owner`].
    pub fn directory(
        self,
        at: &Path,
        directory: BorrowedFd<'_>,
        stat: &FileStat,
    ) -> Option<Exposed> {
        let mode = Mode::from_bits_truncate(stat.st_mode);
        self.writer(stat, mode, || acl::writers(directory, OsStr::new(".")))
            .map(|who| Exposed { at: at.into(), who })
    }

    fn writer(self, stat: &FileStat, mode: Mode, list: impl FnOnce() -> acl::List) -> Option<Who> {
        let is_shared = self.trusts_no_shared && mode.contains(Mode::S_IWOTH);
        if self.is_other(stat.st_uid) {
            Some(Who::Owner(stat.st_uid))
        } else if mode.contains(Mode::S_ISVTX) && !is_shared {
            None
        } else if mode.contains(Mode::S_IWOTH) {
            Some(Who::Everybody)
        } else if mode.contains(Mode::S_IWGRP) {
            self.listed(list(), stat.st_gid)
        } else {
            // These bits are also the most that an ACL allows to all but the owner and the others.
            None
        }
    }

    /// Returns the other user or group that an ACL permits to write. The mode alone does not say who that is.
    fn listed(self, list: acl::List, group: u32) -> Option<Who> {
        let writers = match list {
            Ok(Some(writers)) => writers,
            Ok(None) => vec![Writer::OwningGroup],
            // Who may write is unknown, so the group is not trusted.
            Err(_) => return Some(Who::Group(group)),
        };
        writers.into_iter().find_map(|writer| match writer {
            Writer::User(uid) => self.is_other(uid).then_some(Who::User(uid)),
            Writer::Group(gid) => self.is_other_group(gid).then_some(Who::Group(gid)),
            Writer::OwningGroup => self.is_other_group(group).then_some(Who::Group(group)),
        })
    }

    /// Returns the owner of a link, or of a file that its owner may rename: one in a sticky directory.
    pub fn owner(self, at: &Path, stat: &FileStat) -> Option<Exposed> {
        let who = Who::Owner(stat.st_uid);
        self.is_other(stat.st_uid)
            .then(|| Exposed { at: at.into(), who })
    }

    /// Returns true if a group has other members. One that is neither root's nor the caller's must be a group of this
    /// machine: whether another database has members is unknown. /usr/local of Debian is of such a group, staff.
    fn is_other_group(self, gid: u32) -> bool {
        let is_known = || [0, self.gid].contains(&gid) || name("/etc/group", gid).is_some();
        let has_others = || has_other_members(gid, |uid| self.is_other(uid));
        self.also.1 != Some(gid) && !is_unmapped(gid) && (!is_known() || has_others())
    }

    /// Returns true for a user other than root and the caller.
    pub fn is_other(self, uid: u32) -> bool {
        ![0, self.uid].contains(&uid) && self.also.0 != Some(uid) && !is_unmapped(uid)
    }
}

/// Returns true for the id that the kernel reports for every user and group that the caller's user namespace does not
/// map, the host's root among them: these owners cannot be distinguished. The caller has no more rights in the namespace
/// than outside.
fn is_unmapped(id: u32) -> bool {
    id == overflow_uid().unwrap_or(65534) && in_user_namespace()
}

/// Returns true if a directory protects its users' files from each other.
pub fn is_sticky(stat: &FileStat) -> bool {
    Mode::from_bits_truncate(stat.st_mode).contains(Mode::S_ISVTX)
}

/// Formats who can exchange it.
impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.display();
        match self.who {
            Who::Owner(uid) => write!(f, "{at} belongs to the user {}", named("/etc/passwd", uid)),
            Who::User(uid) => write!(
                f,
                "the user {} may write to {at}",
                named("/etc/passwd", uid)
            ),
            Who::Group(gid) => write!(
                f,
                "the group {} may write to {at}",
                named("/etc/group", gid)
            ),
            Who::Everybody => write!(f, "every user may write to {at}"),
        }
    }
}

/// Returns the name of a user or group, or its number.
fn named(file: &str, id: u32) -> String {
    name(file, id).unwrap_or_else(|| id.to_string())
}
