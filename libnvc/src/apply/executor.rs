//! Executes a prepared plan inside the container's mount namespace.
//!
//! Runs on a separate thread, or on the only thread of a process that is about to end: its namespace, root, directory,
//! umask and filesystem ids change permanently.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::Receiver;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat};

use crate::apply::cache_update::{Update, UpdateContext, add_mounted};
use crate::apply::cgroup;
use crate::apply::entrance::{become_owner, enter, own_descriptors};
use crate::apply::journal::{Journal, Mark};
use crate::apply::mount::attach::Attacher;
use crate::apply::mount::by_name;
use crate::apply::mount::legacy;
use crate::apply::mount::source::ReadySource;
use crate::apply::mount::target::{Leaf, Target, Tree};
use crate::apply::mount::tmpfs;
use crate::apply::mount::visible::{HiddenContent, VisibleMount, all_visible};
use crate::apply::prepare::{
    CacheUpdate, NamespaceRequest, Operation, PreparedPlan, RulesToAdd, SkippedIntents, Task,
};
use crate::apply::replace::PendingLink;
use crate::apply::usable;
use crate::apply::volumes::authority::{Authority, Callers};
use crate::apply::volumes::opened::OpenDirectory;
use crate::apply::volumes::rights::Rights;
use crate::container::Container;
use crate::error::{Error, Result};
use crate::host::{DeviceNumber, DriverRoot};
use crate::inroot::{self, Identity};
use crate::path::ContainerPath;
use crate::plan::Need;
use crate::sys::mount::{self, MountAttributes};

/// The calling thread in a container.
pub(super) struct Executor<'a> {
    container: &'a Container,
    tree: Tree<'a>,
    /// This thread's own descriptor directory.
    descriptors: OwnedFd,
}

impl<'a> Executor<'a> {
    /// Moves the calling thread into a container permanently.
    pub(super) fn enter(container: &'a Container, no_volumes: bool) -> Result<Self> {
        let descriptors = own_descriptors()?;
        // A write beyond the limit of files' sizes must be an error, and undone.
        let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
        let mut callers = Callers::record(container, &descriptors)?;
        let (root, umask) = enter(container)?;
        become_owner(container.process.owner(), &mut callers)?;
        if no_volumes {
            callers.spare_volumes();
        }
        let authority = Authority::new(callers, container, &root, &descriptors)?;
        Ok(Self {
            container,
            tree: Tree::new(root, authority, container, umask),
            descriptors,
        })
    }

    /// Processes requests until the work is done or the channel closes.
    pub(super) fn serve(
        self,
        requests: &Receiver<NamespaceRequest<'_>>,
        driver_root: &DriverRoot,
    ) -> Result<SkippedIntents> {
        for request in requests {
            match request {
                NamespaceRequest::CloneFromImage { path, kind, reply } => {
                    let root = &self.tree.root;
                    let source = ReadySource::in_image(root, self.container.rootfs(), path, kind);
                    // The receiver is gone if another source has failed.
                    let _ = reply.send(source);
                }
                NamespaceRequest::Execute(work) => return self.execute(*work, driver_root),
            }
        }
        Ok(SkippedIntents::default())
    }

    /// Executes the plan, or undoes it; returns the failed best-effort intents.
    pub(super) fn execute(
        self,
        work: PreparedPlan<'_>,
        driver_root: &DriverRoot,
    ) -> Result<SkippedIntents> {
        let descriptors = &self.descriptors;
        let mut journal = Journal::new(descriptors);
        let done = all_steps(
            work,
            self.tree,
            self.container,
            driver_root,
            descriptors,
            &mut journal,
        );
        match done {
            Ok(skipped) => {
                journal.commit()?;
                Ok(skipped)
            }
            Err(error) => {
                log::info!("undoing what was done, because of: {}", error.message());
                Err(error.with_cleanup(journal.undo()))
            }
        }
    }
}

fn all_steps(
    work: PreparedPlan<'_>,
    mut tree: Tree<'_>,
    container: &Container,
    driver_root: &DriverRoot,
    descriptors: &OwnedFd,
    journal: &mut Journal<'_>,
) -> Result<SkippedIntents> {
    let is_read_only = open_for_writing(&tree, container, descriptors, journal);
    let mut attempts = Attempts {
        attacher: Attacher::new(!container.namespace.is_containers, descriptors),
        driver_root,
        marks: Marks::default(),
        skipped: work.skipped,
        mounted: Vec::new(),
        pending: Vec::new(),
        hid_images: false,
    };
    for task in work.tasks {
        attempts.make(task, &mut tree, journal)?;
    }
    // A builtin update cannot replace a mount point: rename(2) refuses in the namespace of the mount.
    let other_namespace = matches!(work.cache, Some(CacheUpdate::Run(..)));
    let warnings = &mut attempts.skipped.reasons;
    let mut cache = work.cache;
    if let Some(update) = &mut cache {
        add_mounted(update, &tree, container)?;
    }
    let update = match cache {
        None => Update::None,
        Some(CacheUpdate::Run(_, news) | CacheUpdate::Builtin(_, news)) if is_etc_fixed(&tree) => {
            Update::Fixed(news)
        }
        Some(update) => {
            let mut place = UpdateContext {
                tree: &mut tree,
                container,
                descriptors,
                journal,
            };
            let folders = place.place_folders(&update, warnings);
            place.start(update, Box::new(folders))?
        }
    };
    let before_update = attempts.mounted.len();
    for task in work.after_cache {
        attempts.make(task, &mut tree, journal)?;
    }
    let Attempts {
        mut skipped,
        mounted,
        pending,
        hid_images,
        ..
    } = attempts;
    if let Some(rules) = work.devices {
        allow(rules, &skipped, journal)?;
    }
    let place = UpdateContext {
        tree: &mut tree,
        container,
        descriptors,
        journal,
    };
    match place.finish(update) {
        Ok(warnings) => skipped.reasons.extend(warnings),
        // Nothing can have been changed either.
        Err(error) if is_read_only => skipped.reasons.push(error),
        Err(error) => return Err(error),
    }
    let kept = |(intent, mount)| (!skipped.has(intent)).then_some(mount);
    let mounted: Vec<_> = mounted.into_iter().map(kept).collect();
    let first_doubtful = match (hid_images, other_namespace) {
        (true, _) => 0,
        (false, true) => before_update,
        (false, false) => mounted.len(),
    };
    all_visible(&mounted, first_doubtful, &tree)?;
    let places = mounted.iter().flatten().map(|mount| mount.at);
    usable::warn(places, &tree, container, descriptors.as_fd());
    // The namespace outlives its processes while it is held open here, so check explicitly.
    container.process.check_alive()?;
    replace_by_links(pending, &mut skipped, journal)?;
    Ok(skipped)
}

/// Returns true if the loader's files in /etc may not be changed.
fn is_etc_fixed(tree: &Tree<'_>) -> bool {
    let etc = tree.root.resolve_directory(Path::new("/etc"));
    etc.is_ok_and(|etc| tree.authority.may_change(&OpenDirectory::from(etc)) == Ok(false))
}

/// Lets links take the place of files. A file is set aside as long as a later link can make everything fail.
fn replace_by_links(
    mut links: Vec<(usize, Need, PendingLink)>,
    skipped: &mut SkippedIntents,
    journal: &mut Journal<'_>,
) -> Result<()> {
    links.retain(|(intent, ..)| !skipped.has(*intent));
    let is_needed = |(_, need, _): &(usize, Need, PendingLink)| *need != Need::BestEffort;
    let last = links.iter().rposition(is_needed).unwrap_or(0);
    for (number, (intent, need, link)) in links.iter().enumerate() {
        link.put(number < last, journal)
            .or_else(|error| skipped.add(*intent, *need, error))?;
    }
    Ok(())
}

/// Executes tasks, and skips those of failed best-effort intents.
struct Attempts<'a> {
    attacher: Attacher<'a>,
    driver_root: &'a DriverRoot,
    marks: Marks,
    skipped: SkippedIntents,
    /// The mounts so far, with their intents.
    mounted: Vec<(usize, VisibleMount<'a>)>,
    /// Links that will take the place of files, with their intents.
    pending: Vec<(usize, Need, PendingLink)>,
    /// True if a mount hides a directory of the image.
    hid_images: bool,
}

impl<'a> Attempts<'a> {
    /// Executes a task.
    ///
    /// # Errors
    /// The task failed, and it is required.
    fn make(
        &mut self,
        task: Task<'a>,
        tree: &mut Tree<'_>,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        let (intent, need) = (task.intent, task.need);
        if self.skipped.has(intent) {
            return Ok(());
        }
        let mark = self.marks.of(intent, journal);
        let done = execute_task(task, tree, &mut self.attacher, self.driver_root, journal);
        let error = match done {
            Ok(Done::Pending(link)) => {
                self.pending.push((intent, need, link));
                return Ok(());
            }
            Ok(Done::Now(mounted)) => {
                self.hid_images |= mounted.as_ref().is_some_and(VisibleMount::hides_images);
                self.mounted
                    .extend(mounted.map(|mounted| (intent, mounted)));
                return Ok(());
            }
            Err(error) => error,
        };
        self.skipped.add(intent, need, error)?;
        self.skipped.reasons.extend(journal.undo_to(mark));
        tree.forget();
        self.attacher.forget();
        Ok(())
    }
}

/// Makes a read-only root writable until everything is done; returns true if it stays read-only.
///
/// Some runtimes make it read-only before they run createContainer hooks.
fn open_for_writing(
    tree: &Tree<'_>,
    container: &Container,
    descriptors: &OwnedFd,
    journal: &mut Journal<'_>,
) -> bool {
    let read_only = MountAttributes::RDONLY;
    let root = tree.root.as_fd();
    let is_read_only = container.process.directory().is_none()
        && mount::attributes(root).is_ok_and(|found| found.contains(read_only));
    if !is_read_only {
        return false;
    }
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|_| Errno::EMFILE);
    let open = || {
        let copies = (copy(root)?, copy(descriptors.as_fd())?);
        by_name::make_read_only(root, false, descriptors)?;
        Ok::<_, Errno>(copies)
    };
    match open() {
        Ok((root, descriptors)) => {
            let place = tree.rootfs.to_owned();
            journal.temporary(Box::new(move || {
                let operation = "making the container's root read-only again failed";
                by_name::make_read_only(root.as_fd(), true, &descriptors)
                    .map_err(|errno| Error::file(operation, place, errno))
            }));
            false
        }
        Err(errno) => {
            log::info!("the container's root stays read-only: {errno}");
            true
        }
    }
}

/// Sets the device rules, except for missing devices.
fn allow(rules: RulesToAdd, skipped: &SkippedIntents, journal: &mut Journal<'_>) -> Result<()> {
    let devices = rules.devices.iter();
    let devices = devices.filter(|(intent, _)| !skipped.has(*intent));
    let devices: Vec<_> = devices.map(|(_, device)| *device).collect();
    // systemd writes its rules again, which would remove ours.
    let numbers = cgroup::numbers(&devices);
    if let Some(extended) = rules.unit.and_then(|unit| unit.allow(&numbers)) {
        journal.other(Box::new(|| extended.undo()));
    }
    let directory = rules.directory.as_fd();
    match cgroup::allow(directory, rules.version, &devices, &rules.name) {
        Ok(undo) => journal.other(Box::new(|| undo.undo())),
        Err(error) if rules.are_dispensable && cgroup::rootless::is_for_privilege(&error) => {
            log::info!(
                "leaving the device rules alone, because the devices can be opened without: {}",
                error.message()
            );
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The journal marks of each intent's first effect; the steps of one intent are consecutive.
#[derive(Default)]
struct Marks(Option<(usize, Mark)>);

impl Marks {
    fn of(&mut self, intent: usize, journal: &Journal<'_>) -> Mark {
        match self.0 {
            Some((last, mark)) if last == intent => mark,
            _ => self.0.insert((intent, journal.mark())).1,
        }
    }
}

/// The result of a task.
enum Done<'a> {
    /// Its mount, if it has one.
    Now(Option<VisibleMount<'a>>),
    /// A link that will take the place of a file.
    Pending(PendingLink),
}

/// Executes a task.
fn execute_task<'a>(
    task: Task<'a>,
    tree: &mut Tree<'_>,
    attacher: &mut Attacher<'_>,
    driver_root: &DriverRoot,
    journal: &mut Journal<'_>,
) -> Result<Done<'a>> {
    let mounted = match task.operation {
        Operation::Bind { source, at } => {
            let (identity, hidden) = bind(source, at, tree, attacher, driver_root, journal)?;
            Some(VisibleMount::new(at, identity, hidden, tree)?)
        }
        Operation::MountTmpfs { tmpfs, at } => {
            let place = at.below(tree.rootfs);
            let target = existing(tree, at, Leaf::Directory(0), &place)?;
            let (hidden, mark) = (HiddenContent::below(&target), journal.mark());
            tmpfs.mount(&target, &place, tree, attacher, journal)?;
            VisibleMount::since(mark, at, hidden, tree, journal)?
        }
        Operation::MountProfile { profile, at } => {
            let place = at.below(tree.rootfs);
            let target = tree.mount_point(at, Leaf::Directory(profile.mode()), journal)?;
            let (hidden, mark) = (HiddenContent::below(&target), journal.mark());
            profile.mount(&target, &place, tree, attacher, journal)?;
            VisibleMount::since(mark, at, hidden, tree, journal)?
        }
        Operation::Symlink {
            at,
            target,
            replaces,
        } => {
            let place = at.below(tree.rootfs);
            let log = || log::info!("linking {} to {}", place.display(), target.display());
            if replaces {
                log();
                let descriptors = attacher.descriptors;
                let pending = tree.replacing_symlink(at, target, descriptors, journal)?;
                return Ok(pending.map_or(Done::Now(None), Done::Pending));
            }
            if tree.symlink(at, target, journal)? {
                log();
            }
            None
        }
        Operation::WriteFile { directory, file } => {
            tree.write(directory, file, attacher.descriptors, journal)?;
            None
        }
        Operation::CoverFile { cover, at } => {
            let place = at.below(tree.rootfs);
            let target = existing(tree, at, Leaf::File(0), &place)?;
            let directory = at.parent();
            let above = existing(tree, &directory, Leaf::Directory(0), &place)?;
            let mark = journal.mark();
            cover.mount(&target, &above, &place, tree, attacher, journal)?;
            VisibleMount::since(mark, at, HiddenContent::Nothing, tree, journal)?
        }
        Operation::Seal { at } => {
            let place = at.below(tree.rootfs);
            let target = existing(tree, at, Leaf::Directory(0), &place)?;
            tmpfs::seal(&target, &place, tree, attacher, journal)?;
            None
        }
        Operation::SetMode { at, mode } => {
            set_mode(at, mode, tree, attacher.descriptors, journal)?;
            None
        }
    };
    Ok(Done::Now(mounted))
}

/// Changes the permissions of a file, if it exists. Those of a file of another user stay, if the kernel protects it.
fn set_mode(
    at: &ContainerPath,
    mode: u32,
    tree: &Tree<'_>,
    descriptors: &OwnedFd,
    journal: &mut Journal<'_>,
) -> Result<()> {
    const OPERATION: &str = "chmod failed";
    let place = at.below(tree.rootfs);
    let failed = |errno| Error::file(OPERATION, &place, errno);
    let found = match tree.root.resolve(at.as_path()) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => {
            log::info!("{} is missing", place.display());
            return Ok(());
        }
        found => found.map_err(failed)?,
    };
    let old = inroot::stat(found.as_fd()).map_err(failed)?.st_mode & 0o7777;
    if old & 0o777 == mode {
        return Ok(());
    }
    // A mounted device node belongs to the host.
    let rights = tree.authority.rights(found.as_fd()).map_err(failed)?;
    if rights == Rights::Nothing {
        return Err(tree.authority.refusal(OPERATION, &place, found.as_fd()));
    }
    let again = descriptors.try_clone().map_err(|_| failed(Errno::EMFILE))?;
    let name = found.as_raw_fd().to_string();
    let change = |descriptors: &OwnedFd, mode| {
        let mode = Mode::from_bits_truncate(mode);
        let follow = FchmodatFlags::FollowSymlink;
        fchmodat(descriptors, name.as_str(), mode, follow)
    };
    match rights.act(|| change(descriptors, mode)) {
        Ok(()) => {}
        Err(Errno::EPERM | Errno::EACCES) => {
            log::info!("{} belongs to another user", place.display());
            return Ok(());
        }
        Err(errno) => return Err(failed(errno)),
    }
    let undone = place.clone();
    journal.other(Box::new(move || {
        let name = found.as_raw_fd().to_string();
        let mode = Mode::from_bits_truncate(old);
        let undo = || fchmodat(&again, name.as_str(), mode, FchmodatFlags::FollowSymlink);
        rights
            .act(undo)
            .map_err(|errno| Error::file(OPERATION, undone, errno))
    }));
    Ok(())
}

/// Binds a source, unless it is mounted already; returns what it hides.
fn bind(
    mut source: ReadySource,
    at: &ContainerPath,
    tree: &mut Tree<'_>,
    attacher: &mut Attacher<'_>,
    driver_root: &DriverRoot,
    journal: &mut Journal<'_>,
) -> Result<(Identity, HiddenContent)> {
    let identity = source.identity;
    let is_directory = SFlag::from_bits_truncate(source.mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
    let leaf = if is_directory {
        Leaf::Directory(source.mode)
    } else {
        Leaf::File(source.mode)
    };
    let target = tree.mount_point(at, leaf, journal)?;
    if attacher.is_mounted(&source, &target) {
        log::debug!("{source} is mounted at {at} already");
        return Ok((identity, HiddenContent::Nothing));
    }
    if let Some(found) = &target.found
        && has_own_node(&source, &target, found, tree) == Ok(true)
    {
        log::info!("{at} is that device already");
        return Ok((inroot::identity(found), HiddenContent::Nothing));
    }
    let hidden = HiddenContent::below(&target);
    let place = at.below(tree.rootfs);
    log::info!("mounting {source} at {}", place.display());
    if let Some(mount) = source.mount.take() {
        match attacher.attach(mount, &target, &place, journal) {
            // A sandbox that allows cloning mounts, but not attaching them.
            Err(error) if error.errno() == Some(Errno::ENOSYS) => {}
            done => return done.map(|()| (identity, hidden)),
        }
    }
    legacy::bind(
        &source,
        driver_root,
        tree,
        &target,
        attacher,
        &place,
        journal,
    )?;
    Ok((identity, hidden))
}

/// Returns true if the runtime has made the node with another owner or mode than the host's: config.json names those that
/// the container needs. An image cannot put one there, since the filesystem was made for the container.
fn has_own_node(
    source: &ReadySource,
    target: &Target,
    found: &FileStat,
    tree: &Tree<'_>,
) -> Result<bool, Errno> {
    let is_device = inroot::kind(found) == SFlag::S_IFCHR
        && source.device == Some(DeviceNumber::from_rdev(found.st_rdev))
        && (source.owner, source.mode) != ((found.st_uid, found.st_gid), found.st_mode);
    let is_usable = || {
        let attributes = mount::attributes(target.directory.as_fd())?;
        Ok::<_, Errno>(!attributes.contains(MountAttributes::NODEV))
    };
    Ok(is_device
        && tree
            .authority
            .same_mount(target.fd.as_fd(), target.directory.as_fd())?
        && is_usable()?
        && tree
            .authority
            .is_for_container_alone(target.directory.as_fd())?)
}

/// Finds a mount point that must exist: the kernel creates /proc/driver/nvidia.
fn existing(tree: &Tree<'_>, at: &ContainerPath, leaf: Leaf, place: &Path) -> Result<Target> {
    tree.existing(at, leaf).map_err(|errno| {
        let error = Error::file("mount operation failed", place, errno);
        if errno == Errno::ENOENT {
            error.hint(
                "the container's /proc must be mounted, and the driver's kernel module loaded",
            )
        } else {
            error
        }
    })
}
