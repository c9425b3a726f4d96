//! Updates the loader's cache, by ldconfig or by the builtin update.
//!
//! ldconfig runs in parallel with the last steps if everything that it may change can be restored, and after them
//! otherwise. The builtin update runs after them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;

use crate::apply::journal::Journal;
use crate::apply::ldconfig::builtin::{self, UpdateInput, unchanged};
use crate::apply::ldconfig::{Bounds, Folders, PreparedLdconfig, RunningLdconfig, Snapshot};
use crate::apply::mount::target::Tree;
use crate::apply::prepare::CacheUpdate;
use crate::container::{Container, is_mount_point};
use crate::directory::open_child;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, Image};
use crate::ldcache::judge::{self, Loader};
use crate::ldcache::library;
use crate::ldcache::search_path::SearchPath;

/// State of the loader cache's update, which may run in parallel with the last steps.
pub(super) enum Update<'a> {
    /// There is none.
    None,
    /// ldconfig has been started; None if the image has none.
    Started(Option<Running>, UpdateInput<'a>, Box<Folders>),
    /// The loader's files may not be changed: it must find the libraries as it is.
    Fixed(UpdateInput<'a>),
    /// The update runs after the last steps.
    Pending(CacheUpdate<'a>, Box<Folders>),
}

/// A program that has been started, with the directories of the cache before.
pub(super) struct Running {
    ldconfig: RunningLdconfig,
    former: Vec<judge::Directory>,
}

/// What an update works on: the entered container, and the journal of its changes.
pub(super) struct UpdateContext<'w, 't, 'd> {
    pub(super) tree: &'w mut Tree<'t>,
    pub(super) container: &'w Container,
    pub(super) descriptors: &'w OwnedFd,
    pub(super) journal: &'w mut Journal<'d>,
}

impl UpdateContext<'_, '_, '_> {
    /// Finds the places of a hook's folders, if the update writes a cache.
    pub(super) fn place_folders(
        &mut self,
        update: &CacheUpdate<'_>,
        warnings: &mut Vec<Error>,
    ) -> Folders {
        let news = match update {
            CacheUpdate::Run(_, news) | CacheUpdate::Builtin(Loader::Glibc(_), news) => news,
            CacheUpdate::Builtin(_, news) => return Folders::unplaced(news.folders),
        };
        if news.folders.is_empty() {
            return Folders::default();
        }
        Folders::place(
            news.folders,
            news.directories,
            &self.container.image.layout,
            self.tree,
            self.descriptors,
            self.journal,
            warnings,
        )
    }

    /// Starts ldconfig if everything that it may change can be restored, because any remaining step can fail.
    pub(super) fn start<'a>(
        &mut self,
        mut update: CacheUpdate<'a>,
        folders: Box<Folders>,
    ) -> Result<Update<'a>> {
        let CacheUpdate::Run(ldconfig, news) = &mut update else {
            return Ok(Update::Pending(update, folders));
        };
        if !news.folders.is_empty() {
            ldconfig.search(&folders)?;
        }
        let snapshot = self.take_snapshot(news)?;
        if !snapshot.is_complete() {
            return Ok(Update::Pending(update, folders));
        }
        let started = self.start_ldconfig(ldconfig, snapshot)?;
        let CacheUpdate::Run(_, news) = update else {
            unreachable!("it was one above")
        };
        Ok(Update::Started(started, news, folders))
    }

    /// Waits for the update of the library path, or runs it. Returns warnings.
    pub(super) fn finish(mut self, update: Update<'_>) -> Result<Vec<Error>> {
        let container = self.container;
        let layout = &container.image.layout;
        let (ldconfig, news, mut folders) = match update {
            Update::None => return Ok(Vec::new()),
            Update::Fixed(news) => {
                let descriptors = self.descriptors.as_fd();
                let warning =
                    unchanged::check(&news, layout, self.tree, descriptors, self.journal)?;
                return Ok(warning.into_iter().collect());
            }
            Update::Pending(CacheUpdate::Builtin(loader, news), folders) => {
                log_update(self.container);
                return self.order(loader, &news, &folders);
            }
            Update::Started(ldconfig, news, folders) => (ldconfig, news, folders),
            Update::Pending(CacheUpdate::Run(ldconfig, news), folders) => {
                let snapshot = self.take_snapshot(&news)?;
                (self.start_ldconfig(&ldconfig, snapshot)?, news, folders)
            }
        };
        let Some(Running { ldconfig, former }) = ldconfig else {
            return Ok(Vec::new());
        };
        ldconfig.finish()?;
        folders.former = Some(former);
        if folders.path.is_none() {
            folders.path = SearchPath::of(self.image(), layout).ok();
        }
        let loader = judge::written(self.image());
        self.order(&loader, &news, &folders)
    }

    fn image(&self) -> Image<'_> {
        self.tree.image(self.descriptors)
    }

    /// Updates the cache, which a program may have written, so that it leads to what was put into the image.
    fn order(
        self,
        loader: &Loader,
        news: &UpdateInput<'_>,
        folders: &Folders,
    ) -> Result<Vec<Error>> {
        let image = self.tree.image(self.descriptors);
        builtin::update(
            image,
            &self.tree.authority,
            loader,
            &self.container.image.layout,
            news,
            folders,
            self.journal,
        )
    }

    fn take_snapshot(&self, news: &UpdateInput<'_>) -> Result<Snapshot> {
        let directories = [news.directories, news.folders].concat();
        let tree = &self.tree;
        Snapshot::take(&tree.root, self.descriptors, &directories, &tree.authority)
    }

    fn start_ldconfig(
        &mut self,
        ldconfig: &PreparedLdconfig,
        snapshot: Snapshot,
    ) -> Result<Option<Running>> {
        let former = match judge::written(self.image()) {
            Loader::Glibc(cache) => cache.directories,
            Loader::Musl | Loader::Plain => Vec::new(),
        };
        let snapshot = Rc::new(snapshot);
        let to_restore = Rc::clone(&snapshot);
        self.journal.other(Box::new(move || to_restore.restore()));
        snapshot.clear_way()?;
        log_update(self.container);
        let authority = &self.tree.authority;
        let bounds = Bounds {
            owner: self.container.process.owner(),
            user_namespace: authority.user_namespace(),
            writes_volumes: authority.ldconfig_writes_everywhere(),
            descriptors: self.descriptors.as_fd(),
        };
        let started = ldconfig.start(self.tree.root.as_fd(), bounds)?;
        Ok(started.map(|ldconfig| Running { ldconfig, former }))
    }
}

/// Adds the files that the engine, or an earlier configuration, has mounted in the directories to those that were put
/// there. A builtin update of a container that is not entered by a hook does not need them: its cache has them.
///
/// # Errors
/// Kind [`ErrorKind::Volume`]: a volume, mounted later, hides a library of the engine's.
pub(super) fn add_mounted(
    update: &mut CacheUpdate<'_>,
    tree: &Tree<'_>,
    container: &Container,
) -> Result<()> {
    let is_hook = container.process.directory().is_none();
    let news = match update {
        CacheUpdate::Builtin(..) if !is_hook => return Ok(()),
        CacheUpdate::Run(_, news) | CacheUpdate::Builtin(_, news) => news,
    };
    let root = &tree.root;
    let open = |path: &Path| {
        let directory = root.resolve_directory(path).ok()?;
        let identity = inroot::identity_of(&directory).ok()?;
        Some((directory, identity))
    };
    let directories = news.directories.iter().chain(news.folders);
    let directories = directories.filter_map(|path| Some((path, open(path.as_path())?)));
    let directories: Vec<_> = directories.collect();
    let mut known = HashMap::new();
    for point in tree.authority.mount_points() {
        let (Some(above), Some(name)) = (point.parent(), point.file_name()) else {
            continue;
        };
        if !library::is_name(name.as_bytes()) {
            continue;
        }
        let above = above.to_owned();
        let opened = known
            .entry(above)
            .or_insert_with_key(|above| Some(open(above)?.1));
        let mut found = directories.iter();
        let found = found.find(|(_, (_, identity))| Some(*identity) == *opened);
        let Some((directory, (fd, _))) = found else {
            continue;
        };
        let at = directory.join(name);
        if is_hook && is_hidden(fd, name) {
            let error = Error::fault(
                ErrorKind::Volume,
                at,
                format!("a volume on {directory} hides it"),
            );
            return Err(error
                .context("the engine's mount of a library cannot be used")
                .hint("mount the volume elsewhere, or before the library"));
        }
        news.placed.push(at);
    }
    Ok(())
}

/// Returns true if a name in a directory does not lead to what was mounted there.
fn is_hidden(directory: &OwnedFd, name: &OsStr) -> bool {
    match open_child(directory.as_fd(), name) {
        Ok(found) => is_mount_point(found.as_fd()) == Some(false),
        Err(errno) => errno == Errno::ENOENT,
    }
}

fn log_update(container: &Container) {
    let rootfs = container.rootfs().display();
    log::info!("updating the ld.so.cache in {rootfs}");
}
