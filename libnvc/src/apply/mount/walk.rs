//! Walks to a mount point, and creates the components that are missing, also at the target of a dangling link.

use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::apply::journal::Journal;
use crate::apply::mount::target::{Leaf, Target, Tree, is_on_procfs};
use crate::apply::volumes::opened::OpenDirectory;
use crate::directory::open_child;
use crate::inroot::{self, Walk, kind};

impl Tree<'_> {
    /// Walks a path from the root; creates missing components.
    pub(super) fn walk(
        &self,
        path: &Path,
        leaf: Leaf,
        journal: &mut Journal<'_>,
    ) -> Result<Target, Errno> {
        let root = self.root.resolve_directory(Path::new("/"))?;
        let mut walk = Walk::begin(Rc::new(OpenDirectory::from(root)), path);
        while let Some(name) = walk.next_name() {
            let directory = Rc::clone(walk.directory());
            let (fd, found) = match open_child(directory.as_fd(), &name) {
                Ok(fd) => {
                    let stat = inroot::stat(fd.as_fd())?;
                    (fd, Some(stat))
                }
                Err(Errno::ENOENT) => {
                    let wanted = if walk.is_last() { leaf } else { Leaf::Parent };
                    match self.make(&directory, &name, wanted, journal) {
                        Ok(fd) => (fd, None),
                        Err(Errno::EEXIST) => {
                            walk.again(name)?;
                            continue;
                        }
                        Err(errno) => return Err(errno),
                    }
                }
                Err(errno) => return Err(errno),
            };
            match found.as_ref().map(kind) {
                // A magic link's text names a path in another process's view; the other links (`self`, `mounts`) lead
                // to our own process's directory, and a mount there vanishes with us.
                Some(SFlag::S_IFLNK) if is_on_procfs(fd.as_fd())? => return Err(Errno::ELOOP),
                Some(SFlag::S_IFLNK) => walk.follow(fd.as_fd())?,
                _ if walk.is_last() => {
                    return Ok(Target {
                        fd,
                        directory,
                        name,
                        found,
                    });
                }
                None | Some(SFlag::S_IFDIR) => walk.enter(Rc::new(fd.into())),
                Some(_) => return Err(Errno::ENOTDIR),
            }
        }
        // The path ended in `..`, or was the root itself.
        let directory = walk.end();
        let fd = directory.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|_| Errno::EMFILE)?;
        let found = Some(inroot::stat(fd.as_fd())?);
        Ok(Target {
            fd,
            directory,
            name: ".".into(),
            found,
        })
    }
}
