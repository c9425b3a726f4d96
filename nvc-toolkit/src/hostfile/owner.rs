//! Decides whether somebody else than root and the caller can exchange files in a directory.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind};
use rustix::fs::{Mode, Stat};

/// A directory, or a file in a directory that everybody may write, that belongs to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stranger {
    at: PathBuf,
    who: Who,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    User(u32),
    Group(u32),
    Everybody,
}

/// The caller's identity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    uid: u32,
    gid: u32,
    /// Another user and group that are trusted like root.
    also: (Option<u32>, Option<u32>),
}

impl Caller {
    pub(super) fn current() -> Self {
        Self {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            also: (None, None),
        }
    }

    /// Trusts those who may change a file, too.
    pub(super) fn or_who_may_change(self, file: &Metadata) -> Self {
        let is_the_groups = Mode::from_raw_mode(file.mode()).contains(Mode::WGRP);
        let also = (Some(file.uid()), is_the_groups.then_some(file.gid()));
        Self { also, ..self }
    }

    /// Returns who else may change a file, or exchange it for another.
    pub(super) fn file(self, at: &Path, stat: &Stat) -> Option<Stranger> {
        // The sticky bit of a file protects nothing.
        self.writer(at, stat, Mode::from_raw_mode(stat.st_mode) - Mode::SVTX)
    }

    /// Returns who else may create and rename files in a directory.
    ///
    /// In a sticky directory, that is nobody: its files are judged one by one, by [`Caller::owner`].
    pub(super) fn directory(self, at: &Path, stat: &Stat) -> Option<Stranger> {
        self.writer(at, stat, Mode::from_raw_mode(stat.st_mode))
    }

    fn writer(self, at: &Path, stat: &Stat, mode: Mode) -> Option<Stranger> {
        let who = if self.is_other(stat.st_uid) {
            Who::User(stat.st_uid)
        } else if mode.contains(Mode::SVTX) {
            return None;
        } else if mode.contains(Mode::WOTH) {
            Who::Everybody
        } else if mode.contains(Mode::WGRP) && self.is_other_group(stat.st_gid) {
            Who::Group(stat.st_gid)
        } else {
            return None;
        };
        Some(Stranger { at: at.into(), who })
    }

    /// Returns the owner of a file that its owner may rename: one in a sticky directory.
    pub(super) fn owner(self, at: &Path, stat: &Stat) -> Option<Stranger> {
        let who = Who::User(stat.st_uid);
        self.is_other(stat.st_uid)
            .then(|| Stranger { at: at.into(), who })
    }

    fn is_other_group(self, gid: u32) -> bool {
        ![0, self.gid].contains(&gid) && self.also.1 != Some(gid)
    }

    fn is_other(self, uid: u32) -> bool {
        ![0, self.uid].contains(&uid) && self.also.0 != Some(uid)
    }
}

/// Returns true if a directory protects its users' files from each other.
pub(super) fn is_sticky(stat: &Stat) -> bool {
    Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX)
}

impl Stranger {
    /// Returns the refusal to edit a file there.
    pub(super) fn refusal(&self, file: &Path) -> Error {
        let cause = format!("{self}, so another file could be changed in its place");
        let error = Error::fault(ErrorKind::InvalidArgument, file.display(), cause);
        error.hint(match self.who {
            Who::User(uid) => {
                let user = name("/etc/passwd", uid).unwrap_or_else(|| format!("'#{uid}'"));
                format!("run the command as that user, with sudo -u {user}")
            }
            Who::Group(_) => format!("chmod g-w {}", self.at.display()),
            Who::Everybody => format!("chmod go-w {}", self.at.display()),
        })
    }
}

/// Says whose it is.
impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.display();
        match self.who {
            Who::User(uid) => match name("/etc/passwd", uid) {
                Some(user) => write!(f, "{at} belongs to the user {user}"),
                None => write!(f, "{at} belongs to the user {uid}"),
            },
            Who::Group(gid) => match name("/etc/group", gid) {
                Some(group) => write!(f, "the group {group} may write to {at}"),
                None => write!(f, "the group {gid} may write to {at}"),
            },
            Who::Everybody => write!(f, "every user may write to {at}"),
        }
    }
}

/// Returns the name of a user or group. Read here, because the C library's look-ups load modules, which a static program
/// cannot do.
fn name(file: &str, id: u32) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_files() {
        assert_eq!(name("/etc/passwd", 0).as_deref(), Some("root"));
        assert_eq!(name("/etc/passwd", 4_000_000_000), None);
        assert_eq!(name("/nonexistent", 0), None);
    }
}
