//! Moves files to a tmpfs of ours, which only this container has, if their paths are on a volume or read-only.
//!
//! Works on prepared tasks, in the container's namespace, because only there it is known what may be changed. A file's
//! new path is its old one below the tmpfs, so that a later call finds it again without a record.

mod links;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::apply::journal::Journal;
use crate::apply::ldconfig::builtin::UpdateInput;
use crate::apply::mount::attach::Attacher;
use crate::apply::mount::target::{Leaf, Tree};
use crate::apply::mount::tmpfs::NewTmpfs;
use crate::apply::prepare::{CacheUpdate, Operation, PreparedPlan, Task};
use crate::apply::steps::BindKind;
use crate::apply::volumes::decision::{Destination, Directory};
use crate::container::Layout;
use crate::directory;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot;
use crate::path::{ContainerPath, STANDARD_PATH};

/// Paths for the tmpfs: /run may be a volume, and on a read-only root /dev is often the only filesystem that can be
/// changed. ldconfig does not see /dev, but there /etc cannot be changed either, and it does not run.
const TMPFS_PATHS: [&str; 3] = [
    "/run/nvidia-container",
    "/.nvidia-container",
    "/dev/nvidia-container",
];

/// Permission bits of our directories.
const MODE: u32 = 0o755;

/// The new paths of files whose directories may not be changed.
#[derive(Default)]
pub(in crate::apply) struct Redirection {
    /// The path of the tmpfs, if it can be mounted.
    tmpfs: Option<ContainerPath>,
    is_mounted: Cell<bool>,
    /// The directory of PATH over which a second one is mounted.
    path: Option<ContainerPath>,
    /// For each directory whose files are redirected, the new one.
    redirected: BTreeMap<ContainerPath, ContainerPath>,
    /// Links in the tmpfs to libraries that an engine has mounted on a volume.
    links: Vec<(ContainerPath, ContainerPath)>,
    /// For each task, the new path of its file or link.
    new_paths: Vec<Option<ContainerPath>>,
    /// For each link beside libraries that an engine has mounted, its absolute target: it is in another directory now.
    targets: Vec<Option<PathBuf>>,
    /// Intents that are given up, with the reasons.
    left_out: Vec<(usize, Error)>,
    /// Directories for the loader to search: those of the plan, and those in the tmpfs.
    directories: Vec<ContainerPath>,
    folders: Vec<ContainerPath>,
    warnings: Vec<Error>,
    /// The loader's files in /etc may not be changed.
    pub(in crate::apply) etc_is_fixed: bool,
}

impl Redirection {
    /// Decides about all tasks.
    pub(in crate::apply) fn of(
        work: &PreparedPlan<'_>,
        layout: &Layout,
        tree: &mut Tree<'_>,
        descriptors: &OwnedFd,
    ) -> Self {
        let (directories, folders, placed) = searched(work);
        let mut found = Self {
            directories: directories.to_vec(),
            folders: folders.to_vec(),
            ..Self::default()
        };
        let layouts = [&layout.libs_dir, &layout.libs32_dir];
        let searched: Vec<_> = layouts
            .into_iter()
            .chain(directories)
            .chain(folders)
            .collect();
        for kind in [BindKind::Library, BindKind::Program] {
            for (directory, tasks) in fixed(&work.tasks, kind, tree) {
                let is_searched = match kind {
                    BindKind::Library => searched.contains(&&directory),
                    _ => STANDARD_PATH
                        .iter()
                        .any(|path| directory.as_path() == Path::new(path)),
                };
                found.redirect(kind, &directory, is_searched, &tasks, tree);
            }
        }
        found.redirect_links(&work.tasks, tree);
        let of_tasks: HashSet<_> = work.tasks.iter().filter_map(path_of).collect();
        let of_engine = placed.iter().filter(|at| !of_tasks.contains(at));
        let of_engine: Vec<_> = of_engine.cloned().collect();
        for folder in folders {
            found.link_mounted(folder, &of_engine, tree, descriptors);
        }
        found.follow_earlier(tree);
        if work.cache.is_some() && is_etc_fixed(tree) {
            found.etc_is_fixed = true;
            // For a cover.
            found.tmpfs(tree);
        }
        found.new_paths = work
            .tasks
            .iter()
            .map(|task| found.new_path_of(task))
            .collect();
        let targets = work.tasks.iter().map(|task| found.target(task, tree));
        found.targets = targets.collect();
        found
    }

    /// Decides about the files of a fixed directory.
    fn redirect(
        &mut self,
        kind: BindKind,
        directory: &ContainerPath,
        is_searched: bool,
        tasks: &[&Task<'_>],
        tree: &mut Tree<'_>,
    ) {
        let is_there = |task: &&Task<'_>| {
            path_of(task).is_some_and(|at| tree.root.exists(at.as_path()) == Ok(true))
        };
        let is_complete = tasks.iter().all(is_there);
        let tmpfs = self.tmpfs(tree);
        let empty = match kind {
            BindKind::Program if !is_complete => empty_of_path(tree),
            _ => None,
        };
        let facts = Directory {
            is_complete,
            is_searched,
            has_empty: empty.is_some(),
            has_tmpfs: tmpfs.is_some(),
        };
        let destination = match kind {
            BindKind::Library => facts.libraries(),
            _ => facts.programs(),
        };
        let to = match destination {
            Destination::InPlace => return,
            Destination::LeftOut => {
                for task in tasks {
                    if let Some(at) = path_of(task) {
                        let error = tree.refusal("leaving out", at, directory);
                        self.left_out.push((task.intent, error));
                    }
                }
                return;
            }
            Destination::Path => {
                self.path.clone_from(&empty);
                empty
            }
            Destination::Tmpfs => tmpfs.map(|tmpfs| tmpfs.join(directory.relative())),
        };
        let Some(to) = to else { return };
        log::info!("{directory} may not be changed: its files go to {to}");
        if destination == Destination::Tmpfs && kind == BindKind::Program {
            let text = "programs in PATH";
            let cause =
                format!("{directory} may not be changed, and no directory of PATH is empty");
            let error = Error::fault(ErrorKind::Volume, &to, cause).context(text);
            self.warnings.push(error);
        }
        self.redirected.insert(directory.clone(), to);
    }

    /// Tells the loader of directories in the tmpfs instead of fixed ones: those of this plan, and of an earlier one.
    fn follow_earlier(&mut self, tree: &mut Tree<'_>) {
        let all = self.directories.iter().chain(&self.folders);
        for directory in all.cloned().collect::<Vec<_>>() {
            if self.redirected.contains_key(&directory) || tree.may_change(&directory) {
                continue;
            }
            for tmpfs in TMPFS_PATHS {
                let to = ContainerPath::new(tmpfs).join(directory.relative());
                if is_ours(&to, tree) {
                    self.redirected.insert(directory, to);
                    break;
                }
            }
        }
        let redirected = |directory: &ContainerPath| self.redirected.get(directory).cloned();
        let all = self.directories.iter().chain(&self.folders);
        let new: Vec<_> = all.filter_map(redirected).collect();
        let stays = |directory: &ContainerPath| !self.redirected.contains_key(directory);
        self.directories.retain(stays);
        self.folders.retain(stays);
        self.folders.splice(0..0, new);
    }

    /// Returns the new path of a task's file or link.
    fn new_path_of(&self, task: &Task<'_>) -> Option<ContainerPath> {
        self.new_path(path_of(task)?)
    }

    /// Returns the new path of a file, if it has one.
    fn new_path(&self, at: &ContainerPath) -> Option<ContainerPath> {
        let to = self.redirected.get(&at.parent())?;
        Some(to.join(at.file_name()))
    }

    /// Returns true if no file of the plan needs the tmpfs: only links do, without which a container can start.
    pub(in crate::apply) fn is_dispensable(&self, tasks: &[Task<'_>]) -> bool {
        let mut with_paths = tasks.iter().zip(&self.new_paths);
        with_paths.all(|(task, path)| {
            path.is_none() || matches!(task.operation, Operation::Symlink { .. })
        })
    }

    /// Leaves everything in its place.
    pub(in crate::apply) fn give_up(&mut self, work: &PreparedPlan<'_>) {
        let (directories, folders, _) = searched(work);
        *self = Self {
            directories: directories.to_vec(),
            folders: folders.to_vec(),
            new_paths: vec![None; work.tasks.len()],
            targets: vec![None; work.tasks.len()],
            left_out: std::mem::take(&mut self.left_out),
            warnings: std::mem::take(&mut self.warnings),
            etc_is_fixed: self.etc_is_fixed,
            ..Self::default()
        };
    }

    /// Gives tasks and the update of the loader their new paths.
    pub(in crate::apply) fn relocate<'r>(&'r self, mut work: PreparedPlan<'r>) -> PreparedPlan<'r> {
        for (task, other) in work.tasks.iter_mut().zip(&self.targets) {
            if let (Operation::Symlink { target, .. }, Some(other)) = (&mut task.operation, other) {
                *target = other;
            }
        }
        for (task, path) in work.tasks.iter_mut().zip(&self.new_paths) {
            if let (Operation::Bind { at, .. } | Operation::Symlink { at, .. }, Some(path)) =
                (&mut task.operation, path)
            {
                *at = path;
            }
        }
        for (intent, reason) in &self.left_out {
            work.skipped.leave_out(*intent, reason.clone());
        }
        work.skipped.reasons.extend(self.warnings.iter().cloned());
        if let Some(CacheUpdate::Run(_, news) | CacheUpdate::Builtin(_, news)) = &mut work.cache {
            *news = UpdateInput {
                directories: &self.directories,
                folders: &self.folders,
                placed: std::mem::take(&mut news.placed)
                    .into_iter()
                    .map(|at| self.new_path(&at).unwrap_or(at))
                    .collect(),
            };
        }
        work
    }

    /// Returns the directories in the tmpfs for the loader to search.
    pub(in crate::apply) fn in_tmpfs(&self) -> Vec<ContainerPath> {
        let is_new = |folder: &&ContainerPath| self.redirected.values().any(|to| to == *folder);
        self.folders.iter().filter(is_new).cloned().collect()
    }

    /// Mounts what the tasks need.
    pub(in crate::apply) fn mount(
        &self,
        tree: &mut Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        let tmpfs = self.tmpfs.as_ref();
        if tmpfs.is_some_and(|tmpfs| {
            self.redirected
                .values()
                .any(|to| to.as_path().starts_with(tmpfs.as_path()))
        }) {
            self.ensure_tmpfs(tree, attacher, journal)?;
            for to in self.redirected.values() {
                if Some(to) != self.path.as_ref() {
                    tree.directory_in_tmpfs(to, MODE, journal)?;
                }
            }
        }
        for (at, target) in &self.links {
            tree.symlink(at, target.as_path(), journal)?;
        }
        match &self.path {
            Some(path) => mount_tmpfs(path, tree, attacher, journal),
            None => Ok(()),
        }
    }

    /// Mounts the tmpfs, unless that is done; returns its path.
    pub(in crate::apply) fn ensure_tmpfs(
        &self,
        tree: &mut Tree<'_>,
        attacher: &mut Attacher<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<Option<&ContainerPath>> {
        let Some(tmpfs) = &self.tmpfs else {
            return Ok(None);
        };
        if !self.is_mounted.replace(true) {
            mount_tmpfs(tmpfs, tree, attacher, journal)?;
        }
        Ok(Some(tmpfs))
    }

    /// Chooses the path of the tmpfs, if that is not done.
    fn tmpfs(&mut self, tree: &mut Tree<'_>) -> Option<ContainerPath> {
        if self.tmpfs.is_none() {
            let paths = TMPFS_PATHS.map(ContainerPath::new);
            let earlier = paths.iter().find(|tmpfs| is_ours(tmpfs, tree)).cloned();
            self.tmpfs = earlier.or_else(|| paths.into_iter().find(|tmpfs| tree.may_change(tmpfs)));
        }
        self.tmpfs.clone()
    }
}

/// Returns what the loader must search: directories, folders, and the files there.
fn searched<'w>(
    work: &'w PreparedPlan<'_>,
) -> (
    &'w [ContainerPath],
    &'w [ContainerPath],
    &'w [ContainerPath],
) {
    match &work.cache {
        Some(CacheUpdate::Run(_, news) | CacheUpdate::Builtin(_, news)) => {
            (news.directories, news.folders, &news.placed)
        }
        None => (&[], &[], &[]),
    }
}

/// Returns the fixed directories of a kind of files, with the tasks of those files.
fn fixed<'w, 'a>(
    tasks: &'w [Task<'a>],
    kind: BindKind,
    tree: &mut Tree<'_>,
) -> BTreeMap<ContainerPath, Vec<&'w Task<'a>>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for task in tasks {
        if let Operation::Bind { at, kind: of, .. } = &task.operation
            && *of == Some(kind)
        {
            found.entry(at.parent()).or_default().push(task);
        }
    }
    found.retain(|directory, _| !tree.may_change(directory));
    found
}

/// Returns true if the loader's files in /etc may not be changed.
fn is_etc_fixed(tree: &mut Tree<'_>) -> bool {
    let etc = ContainerPath::new("/etc");
    tree.root.exists(etc.as_path()) == Ok(true) && !tree.may_change(&etc)
}

/// Returns the path of a task's file or link.
fn path_of<'t>(task: &'t Task<'_>) -> Option<&'t ContainerPath> {
    match &task.operation {
        Operation::Bind {
            at, kind: Some(_), ..
        }
        | Operation::Symlink { at, .. } => Some(at),
        _ => None,
    }
}

/// Returns a directory of PATH that is empty, or over which an earlier call has mounted programs.
fn empty_of_path(tree: &Tree<'_>) -> Option<ContainerPath> {
    let paths = STANDARD_PATH.map(ContainerPath::new);
    let is_empty = |path: &&ContainerPath| {
        let opened = tree.root.resolve_directory(path.as_path());
        let listed = opened.and_then(inroot::open_to_list);
        // `.` and `..` are listed too.
        listed.is_ok_and(|fd| directory::list(fd.as_fd(), &mut { 2 }, |_| {}).is_ok())
    };
    let ours = paths.iter().find(|path| is_ours(path, tree));
    ours.or_else(|| paths.iter().find(is_empty)).cloned()
}

/// Returns true if a directory is on a tmpfs that only this container has.
fn is_ours(path: &ContainerPath, tree: &Tree<'_>) -> bool {
    let found = tree.root.resolve_directory(path.as_path());
    found.is_ok_and(|found| {
        let is_private = tree.authority.is_private_tmpfs(found.as_fd()) == Ok(true);
        is_private && tree.authority.is_for_container_alone(found.as_fd()) == Ok(false)
    })
}

fn mount_tmpfs(
    at: &ContainerPath,
    tree: &mut Tree<'_>,
    attacher: &mut Attacher<'_>,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let place = at.below(tree.rootfs);
    let target = tree.mount_point(at, Leaf::Directory(MODE), journal)?;
    let tmpfs = NewTmpfs::detached(MODE, Vec::new())
        .map_err(|errno| Error::file("mount operation failed", &place, errno))?;
    tmpfs.mount(&target, &place, tree, attacher, journal)?;
    // Directories below it were resolved to what it hides.
    tree.forget();
    Ok(())
}
