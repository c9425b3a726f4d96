//! Follows no link that another user could have made: what it leads to would be his choice, also a file that only root
//! may read.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::directory::open_child;
use crate::error::errno_of;
use crate::inroot::{self, RootDir, Walk};
use crate::path::HostPath;
use crate::trust::{Caller, is_sticky};

/// Why such a path is skipped.
pub(crate) const FORGED: &str = "a link that other users could have created leads to it";

/// Opens a path in the driver root by reference; `ELOOP` if a link in the path belongs to another user than the caller,
/// root, and who owns the driver root, or is in, or below, a directory where such users can create links.
pub(super) fn unforged(root: &RootDir, path: &HostPath) -> Result<Place, Errno> {
    let top = File::from(root.resolve_directory(Path::new("/"))?);
    let facts = top.metadata().map_err(|error| errno_of(&error))?;
    let caller = Caller::current().or_who_may_change(&facts);
    let top = Place::new(caller, top.into(), HostPath::new("/"), None)?;
    let mut walk = Walk::begin(top, path.as_path());
    while let Some(name) = walk.next_name() {
        let current = walk.directory();
        let fd = open_child(current.fd.as_fd(), &name)?;
        let found = Place::new(caller, fd, current.real.join(&name), Some(current))?;
        match found.kind {
            SFlag::S_IFLNK if found.is_exposed => return Err(Errno::ELOOP),
            SFlag::S_IFLNK => walk.follow(found.fd.as_fd())?,
            _ => walk.enter(found),
        }
    }
    Ok(walk.end())
}

/// A component of a path.
pub(crate) struct Place {
    pub(crate) fd: OwnedFd,
    pub(crate) real: HostPath,
    pub(crate) kind: SFlag,
    /// Other users can exchange it, or what is in it.
    is_exposed: bool,
    /// They can change only their own entries, as in /tmp and in Nix's store.
    is_sticky: bool,
}

impl Place {
    fn new(
        caller: Caller,
        fd: OwnedFd,
        real: HostPath,
        above: Option<&Self>,
    ) -> Result<Self, Errno> {
        let stat = inroot::stat(fd.as_fd())?;
        let kind = inroot::kind(&stat);
        let path = real.as_path();
        let exposed = match kind {
            SFlag::S_IFDIR => caller.directory(path, fd.as_fd(), &stat),
            // Its owner chose what a link leads to: an access list of its directory may have let a user put it there.
            _ => caller.owner(path, &stat),
        };
        // In a sticky directory a link may be another name of one that is ours.
        let is_below = above.is_some_and(|above| {
            above.is_exposed || above.is_sticky && (kind != SFlag::S_IFDIR || exposed.is_some())
        });
        Ok(Self {
            is_exposed: is_below || exposed.is_some(),
            is_sticky: is_sticky(&stat) && stat.st_mode & 0o022 != 0,
            fd,
            real,
            kind,
        })
    }
}
