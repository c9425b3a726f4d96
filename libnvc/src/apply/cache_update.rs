//! Runs the update of the loader's cache: ldconfig in parallel with the last steps, if all that it may change can be
//! restored, and otherwise after them; or the builtin one.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use crate::apply::journal::Journal;
use crate::apply::ldconfig::builtin::fixed::{self, Outcome};
use crate::apply::ldconfig::builtin::{self, News};
use crate::apply::ldconfig::{Bounds, Folders, PreparedLdconfig, RunningLdconfig, Snapshot};
use crate::apply::mount::target::Tree;
use crate::apply::prepare::CacheUpdate;
use crate::container::Container;
use crate::error::{Error, Result};
use crate::inroot::Image;
use crate::ldcache::judge::Loader;
use crate::path::ContainerPath;

/// State of the loader cache's update, which may run in parallel with the last steps.
pub(super) enum Update<'a> {
    /// There is none.
    None,
    /// ldconfig has been started; None if the image has none.
    Started(Option<RunningLdconfig>),
    /// The loader's files may not be changed.
    Fixed(News<'a>),
    /// The update runs after the last steps.
    Pending(CacheUpdate<'a>, Box<Folders>),
}

/// Finds the places of a hook's folders, if the update writes a cache.
pub(super) fn place_folders(
    update: &CacheUpdate<'_>,
    tree: &mut Tree<'_>,
    container: &Container,
    descriptors: &OwnedFd,
    journal: &mut Journal<'_>,
    warnings: &mut Vec<Error>,
) -> Folders {
    let (directories, folders) = match update {
        CacheUpdate::Run(_, news) => (news.directories, news.folders),
        CacheUpdate::Builtin(Loader::Glibc(_), news) => (news.directories, news.folders),
        CacheUpdate::Builtin(_, news) => return Folders::unplaced(news.folders),
    };
    if folders.is_empty() {
        return Folders::default();
    }
    let layout = &container.image.layout;
    Folders::place(
        folders,
        directories,
        layout,
        tree,
        descriptors,
        journal,
        warnings,
    )
}

/// Starts ldconfig if everything that it may change can be restored, because any remaining step can fail.
pub(super) fn start_update<'a>(
    mut update: CacheUpdate<'a>,
    folders: Box<Folders>,
    tree: &Tree<'_>,
    container: &Container,
    descriptors: &OwnedFd,
    journal: &mut Journal<'_>,
) -> Result<Update<'a>> {
    let CacheUpdate::Run(ldconfig, news) = &mut update else {
        return Ok(Update::Pending(update, folders));
    };
    ldconfig.search_only(news.directories)?;
    if !news.folders.is_empty() {
        ldconfig.search(&folders)?;
    }
    let snapshot = take_snapshot(
        tree,
        descriptors,
        &[news.directories, news.folders].concat(),
    )?;
    if !snapshot.is_complete() {
        return Ok(Update::Pending(update, folders));
    }
    start_ldconfig(ldconfig, snapshot, tree, container, descriptors, journal).map(Update::Started)
}

/// Waits for the update of the library path, or runs it.
pub(super) fn finish_update(
    update: Update<'_>,
    tree: &mut Tree<'_>,
    container: &Container,
    descriptors: &OwnedFd,
    tools: fixed::Tools<'_, '_, '_>,
) -> Result<Outcome> {
    if let Update::Fixed(news) = &update {
        return fixed::inform(news, &container.image.layout, tree, tools);
    }
    let journal = tools.journal;
    match update {
        Update::None | Update::Fixed(_) => Ok(()),
        Update::Started(ldconfig) => ldconfig.map_or(Ok(()), RunningLdconfig::finish),
        Update::Pending(CacheUpdate::Builtin(loader, news), folders) => {
            log_update(container);
            let image = Image {
                root: &tree.root,
                descriptors: descriptors.as_fd(),
            };
            let layout = &container.image.layout;
            builtin::update(
                image,
                &tree.authority,
                loader,
                layout,
                &news,
                &folders,
                journal,
            )
        }
        Update::Pending(CacheUpdate::Run(ldconfig, news), _) => {
            let all = [news.directories, news.folders].concat();
            let snapshot = take_snapshot(tree, descriptors, &all)?;
            let ldconfig =
                start_ldconfig(&ldconfig, snapshot, tree, container, descriptors, journal)?;
            ldconfig.map_or(Ok(()), RunningLdconfig::finish)
        }
    }
    .map(|()| Outcome::Found)
}

fn take_snapshot(
    tree: &Tree<'_>,
    descriptors: &OwnedFd,
    directories: &[ContainerPath],
) -> Result<Snapshot> {
    Snapshot::take_within(&tree.root, descriptors, directories, &tree.authority)
}

fn start_ldconfig(
    ldconfig: &PreparedLdconfig,
    snapshot: Snapshot,
    tree: &Tree<'_>,
    container: &Container,
    descriptors: &OwnedFd,
    journal: &mut Journal<'_>,
) -> Result<Option<RunningLdconfig>> {
    let snapshot = Rc::new(snapshot);
    let to_restore = Rc::clone(&snapshot);
    journal.other(Box::new(move || to_restore.restore()));
    snapshot.clear_way()?;
    log_update(container);
    let bounds = Bounds {
        owner: container.process.owner(),
        user_namespace: tree.authority.user_namespace(),
        writes_volumes: tree.authority.ldconfig_writes_everywhere(),
        descriptors: descriptors.as_fd(),
    };
    ldconfig.start_within(tree.root.as_fd(), bounds)
}

fn log_update(container: &Container) {
    let rootfs = container.rootfs().display();
    log::info!("updating the ld.so.cache in {rootfs}");
}
