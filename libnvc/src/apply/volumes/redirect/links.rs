//! Moves the SONAME links of libraries to the tmpfs, if an engine has mounted the libraries on a volume.
//!
//! The loader finds a library by that link, and no link may be created on a volume.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::readlinkat;

use super::{Redirection, TMPFS_PATHS};
use crate::apply::ldconfig::builtin::fixed;
use crate::apply::mount::target::Tree;
use crate::apply::prepare::{Operation, Task};
use crate::error::{Error, ErrorKind};
use crate::ldcache::library;
use crate::path::ContainerPath;

/// The way out if an engine has mounted the libraries, and they cannot be used.
const ENGINE: &str =
    "--gpus, --runtime=nvidia or a specification of --style=live mount them elsewhere";

impl Redirection {
    /// Decides about links to libraries in fixed directories, which no library of this plan is in: the engine mounts
    /// those, and an update of the loader finds the links in the tmpfs.
    pub(super) fn redirect_links(&mut self, tasks: &[Task<'_>], tree: &mut Tree<'_>) {
        for task in tasks {
            let Operation::Symlink {
                at,
                target,
                replaces: true,
            } = &task.operation
            else {
                continue;
            };
            let directory = at.parent();
            if !library::is_name(at.file_name().as_bytes())
                || self.redirected.contains_key(&directory)
                || tree.may_change(&directory)
                || target_of(at, tree).is_some_and(|found| found == target.as_os_str())
            {
                continue;
            }
            if let Some(tmpfs) = self.tmpfs(tree) {
                let to = tmpfs.join(directory.relative());
                log::info!("{directory} may not be changed: its links go to {to}");
                self.redirected.insert(directory, to);
            }
        }
    }

    /// Decides about the links of libraries that an engine has mounted in a fixed directory: the loader finds a library
    /// by the link of its SONAME.
    pub(super) fn link_mounted(
        &mut self,
        folder: &ContainerPath,
        of_engine: &[ContainerPath],
        tree: &mut Tree<'_>,
        descriptors: &OwnedFd,
    ) {
        let mut here = of_engine.iter().filter(|at| at.parent() == *folder);
        if tree.root.exists(folder.as_path()) != Ok(true) || tree.may_change(folder) {
            return;
        }
        if let Some(hidden) = { here.clone() }.find(|at| !is_mount_point(at, folder, tree)) {
            let cause = format!("a volume is mounted over it; {ENGINE}");
            let error = Error::fault(ErrorKind::Volume, hidden, cause);
            let error = error.context("the engine's mount of a library is hidden");
            self.warnings.push(error);
        }
        if here.next().is_none() {
            return;
        }
        let links = match fixed::missing_links(folder, of_engine, tree, descriptors) {
            Ok(Some(links)) => links,
            Ok(None) => return,
            Err(error) => {
                self.warnings.push(error);
                return;
            }
        };
        let Some(tmpfs) = self.tmpfs(tree) else {
            let cause = format!(
                "no link may be created there or in {}; {ENGINE}",
                TMPFS_PATHS[0]
            );
            let error = Error::fault(ErrorKind::Volume, folder, cause);
            self.warnings
                .push(error.context("the loader may not find the driver's libraries"));
            return;
        };
        let to = tmpfs.join(folder.relative());
        log::info!("{folder} may not be changed: links to its libraries go to {to}");
        let links = { links }
            .into_iter()
            .map(|(name, target)| (to.join(name), target));
        self.links.extend(links);
        self.redirected.insert(folder.clone(), to);
    }

    /// Returns the other target of a link that is redirected.
    pub(super) fn target(&self, task: &Task<'_>, tree: &Tree<'_>) -> Option<PathBuf> {
        let Operation::Symlink { at, target, .. } = &task.operation else {
            return None;
        };
        self.new_path(at)?;
        let is_name = target.parent() == Some(Path::new(""));
        let directory = at.parent();
        let beside = directory.join(target);
        let is_mounted = is_name && is_mount_point(&beside, &directory, tree);
        is_mounted.then(|| beside.as_path().to_owned())
    }
}

/// Returns the target of a link.
fn target_of(at: &ContainerPath, tree: &Tree<'_>) -> Option<OsString> {
    let found = tree.root.resolve_nofollow(at.as_path()).ok()?;
    readlinkat(&found, "").ok()
}

/// Returns true if a file is on another mount than its directory.
fn is_mount_point(at: &ContainerPath, directory: &ContainerPath, tree: &Tree<'_>) -> bool {
    let file = tree.root.resolve_nofollow(at.as_path());
    let directory = tree.root.resolve_directory(directory.as_path());
    let (Ok(file), Ok(directory)) = (file, directory) else {
        return false;
    };
    tree.authority.same_mount(file.as_fd(), directory.as_fd()) == Ok(false)
}
