//! Prepares steps outside the container: every source is opened, checked and cloned before the first effect.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};

use nix::errno::Errno;

use super::{Ahead, ApplyOptions};
use crate::apply::cgroup::systemd::Unit;
use crate::apply::cgroup::{self, WantedDevice};
use crate::apply::ldconfig::PreparedLdconfig;
use crate::apply::ldconfig::builtin::UpdateInput;
use crate::apply::mount::source::{ExpectedType, HostSources, ReadySource};
use crate::apply::mount::tmpfs::{NewCover, NewProfile, NewTmpfs};
use crate::apply::replace::NewFile;
use crate::apply::steps::{Action, BindKind, Source, Step};
use crate::apply::usable;
use crate::container::{CgroupVersion, Container};
use crate::error::{Error, Result};
use crate::host::DriverRoot;
use crate::host::nodes::IMEX_DIRECTORY;
use crate::ldcache::judge::Loader;
use crate::options::Ldconfig;
use crate::path::{ContainerPath, HostPath};
use crate::plan::Need;

/// Requests to the namespace thread.
pub(super) enum NamespaceRequest<'a> {
    /// Open and clone a file of the image, which only a thread in the container's namespace can do.
    CloneFromImage {
        path: &'a ContainerPath,
        kind: BindKind,
        reply: Sender<Result<ReadySource>>,
    },
    /// Execute the plan, and end.
    Execute(Box<PreparedPlan<'a>>),
}

/// Steps with open and checked sources: errors that can be found without changing the container have been found.
pub(super) struct PreparedPlan<'a> {
    /// In execution order: first those on which the update of the ld.so.cache depends.
    pub(super) tasks: Vec<Task<'a>>,
    pub(super) cache: Option<CacheUpdate<'a>>,
    /// Those on which the update does not depend: devices, sockets, procfs. They need not wait for it.
    pub(super) after_cache: Vec<Task<'a>>,
    /// All together, so that each device program is replaced once.
    pub(super) devices: Option<RulesToAdd>,
    /// Skipped best-effort intents.
    pub(super) skipped: SkippedIntents,
}

/// The way to update the container's loader.
pub(super) enum CacheUpdate<'a> {
    /// By ldconfig, for the directories of its command line, and for the folders of a hook.
    Run(PreparedLdconfig, UpdateInput<'a>),
    /// In this process.
    Builtin(&'a Loader, UpdateInput<'a>),
}

/// A step with its resources from the caller's namespaces.
pub(super) struct Task<'a> {
    pub(super) intent: usize,
    pub(super) need: Need,
    pub(super) operation: Operation<'a>,
}

/// The effect of a task.
pub(super) enum Operation<'a> {
    Bind {
        source: ReadySource,
        at: &'a ContainerPath,
    },
    MountTmpfs {
        tmpfs: NewTmpfs<'a>,
        at: &'a ContainerPath,
    },
    MountProfile {
        profile: NewProfile<'a>,
        at: &'a ContainerPath,
    },
    Symlink {
        at: &'a ContainerPath,
        target: &'a Path,
        replaces: bool,
    },
    WriteFile {
        directory: &'a ContainerPath,
        file: &'a NewFile,
    },
    CoverFile {
        cover: NewCover<'a>,
        at: &'a ContainerPath,
    },
    Seal {
        at: &'a ContainerPath,
    },
    SetMode {
        at: &'a ContainerPath,
        mode: u32,
    },
}

/// Devices for a device cgroup.
pub(super) struct RulesToAdd {
    pub(super) directory: OwnedFd,
    pub(super) version: CgroupVersion,
    /// The cgroup's name for messages.
    pub(super) name: PathBuf,
    /// Each with its intent.
    pub(super) devices: Vec<(usize, WantedDevice)>,
    /// systemd's unit whose `DeviceAllow` must contain them.
    pub(super) unit: Option<Unit>,
    /// True if the container can open them even if the rules cannot be changed.
    pub(super) are_dispensable: bool,
}

/// Skipped best-effort intents, with the reasons.
#[derive(Debug, Default)]
pub(super) struct SkippedIntents {
    intents: HashSet<usize>,
    pub(super) reasons: Vec<Error>,
}

impl SkippedIntents {
    /// Skips an intent if it is best effort.
    ///
    /// # Errors
    /// The reason, if it is required.
    pub(super) fn add(&mut self, intent: usize, need: Need, reason: Error) -> Result<()> {
        match need {
            Need::Required => Err(reason),
            Need::WherePermitted if !reason.is_for_place() => Err(reason),
            Need::WherePermitted | Need::BestEffort => {
                self.intents.insert(intent);
                self.reasons.push(reason);
                Ok(())
            }
        }
    }

    pub(super) fn has(&self, intent: usize) -> bool {
        self.intents.contains(&intent)
    }
}

/// Input of the preparation.
#[derive(Clone, Copy)]
pub(super) struct Preparation<'a, 'o> {
    pub(super) steps: &'a [Step],
    pub(super) root: &'o DriverRoot,
    pub(super) container: &'a Container,
    pub(super) options: ApplyOptions<'o>,
    pub(super) last_on_host: &'o dyn Fn(),
}

impl<'a> Preparation<'a, '_> {
    /// Opens and checks everything that was not prepared ahead; call it in the caller's namespaces. Files of the image
    /// are requested from the namespace thread; without one there must be none.
    ///
    /// Mounts are cloned and attached in the plan's order, which is also that of the mount table.
    pub(super) fn prepare(
        &self,
        skipped: SkippedIntents,
        ahead: &mut Ahead,
        requests: Option<&Sender<NamespaceRequest<'a>>>,
    ) -> Result<PreparedPlan<'a>> {
        let mut work = PreparedPlan {
            tasks: Vec::with_capacity(self.steps.len()),
            cache: None,
            after_cache: Vec::new(),
            devices: None,
            skipped,
        };
        let user = usable::outside(self.container).map(|user| user.uid);
        let user = user.unwrap_or_else(|| self.container.owner().0);
        let mut sources = HostSources::new(self.root, user);
        let mut before_cache = 0;
        let mut devices = Vec::new();
        let mut nodes = Vec::new();
        let (late, early): (Vec<_>, Vec<_>) = self.steps.iter().partition(|step| is_late(step));
        for step in early {
            if work.skipped.has(step.intent) {
                continue;
            }
            match &step.action {
                Action::AllowDevice { device, node } => {
                    devices.push((step.intent, *device));
                    nodes.push(node);
                    continue;
                }
                Action::UpdateLdCache {
                    directories,
                    first,
                    folders,
                } => {
                    work.cache = Some(self.cache_update(directories, *first, folders, ahead)?);
                    continue;
                }
                _ => self.add(step, &mut sources, requests, &mut work)?,
            }
            before_cache = before_cache.min(work.tasks.len());
            if library(step).is_some() {
                before_cache = work.tasks.len();
            }
        }
        work.devices = self.rules(devices, &nodes)?;
        (self.last_on_host)();
        for step in late {
            self.add(step, &mut sources, requests, &mut work)?;
        }
        work.after_cache = work.tasks.split_off(before_cache);
        Ok(work)
    }

    /// Adds the task of a step; skips its intent if that is best effort and has failed.
    fn add(
        &self,
        step: &'a Step,
        sources: &mut HostSources<'_>,
        requests: Option<&Sender<NamespaceRequest<'a>>>,
        work: &mut PreparedPlan<'a>,
    ) -> Result<()> {
        let Step { intent, need, .. } = *step;
        match self.operation(&step.action, sources, requests) {
            Ok(operation) => work.tasks.push(Task {
                intent,
                need,
                operation,
            }),
            Err(error) => {
                work.skipped.add(intent, need, error)?;
                work.tasks.retain(|task| task.intent != intent);
            }
        }
        Ok(())
    }

    /// Opens the container's device cgroup, and asks systemd about it, if rules for devices are to be added.
    fn rules(
        &self,
        devices: Vec<(usize, WantedDevice)>,
        nodes: &[&HostPath],
    ) -> Result<Option<RulesToAdd>> {
        let (false, Some(cgroup)) = (devices.is_empty(), self.container.device_cgroup()) else {
            return Ok(None);
        };
        let directory = self.container.open_device_cgroup(cgroup)?;
        let wanted: Vec<_> = devices.iter().map(|(_, device)| *device).collect();
        // A caller that works inside the container may see the container's own /run.
        let process = &self.container.process;
        let is_host = !process.is_standalone();
        let unit = is_host.then(|| cgroup::unit(directory.as_fd(), cgroup, process, &wanted));
        Ok(Some(RulesToAdd {
            directory,
            version: cgroup.version,
            name: cgroup.directory.clone(),
            devices,
            unit: unit.flatten(),
            // Lines of version 1 that are missing do deny a device.
            are_dispensable: cgroup.version == CgroupVersion::V2
                && cgroup::rootless::can_open(self.root, nodes),
        }))
    }

    fn operation(
        &self,
        action: &'a Action,
        sources: &mut HostSources<'_>,
        requests: Option<&Sender<NamespaceRequest<'a>>>,
    ) -> Result<Operation<'a>> {
        let mount_failed = |at: &ContainerPath, errno| {
            let place = at.below(self.container.rootfs());
            Error::file("mount operation failed", place, errno)
        };
        Ok(match action {
            Action::Bind { source, at, kind } => Operation::Bind {
                source: match source {
                    Source::Host(path) => sources.open(path, ExpectedType::Kind(*kind))?,
                    Source::Image(path) => clone_from_image(path, *kind, requests)?,
                },
                at,
            },
            Action::BindDevice { source, number, at } => Operation::Bind {
                source: sources.open(source, ExpectedType::Device(*number))?,
                at,
            },
            Action::MountTmpfs { at, mode, files } => Operation::MountTmpfs {
                tmpfs: NewTmpfs::detached(*mode, files.as_slice())
                    .map_err(|errno| mount_failed(at, errno))?,
                at,
            },
            Action::ShowInProfile { at, minors } => Operation::MountProfile {
                profile: NewProfile::detached(minors).map_err(|errno| mount_failed(at, errno))?,
                at,
            },
            Action::Symlink {
                at,
                target,
                replaces,
            } => Operation::Symlink {
                at,
                target,
                replaces: *replaces,
            },
            Action::WriteFile { directory, file } => Operation::WriteFile { directory, file },
            Action::CoverFile { at, file } => Operation::CoverFile {
                cover: NewCover::detached(file).map_err(|errno| mount_failed(at, errno))?,
                at,
            },
            Action::Seal { at } => Operation::Seal { at },
            Action::SetMode { at, mode } => Operation::SetMode { at, mode: *mode },
            Action::AllowDevice { .. } | Action::UpdateLdCache { .. } => {
                unreachable!("collected by the caller")
            }
        })
    }

    fn cache_update(
        &self,
        directories: &'a [ContainerPath],
        first: usize,
        folders: &'a [ContainerPath],
        ahead: &mut Ahead,
    ) -> Result<CacheUpdate<'a>> {
        let ldconfig = &self.container.image.ldconfig;
        let placed = self.options.placed.iter().cloned();
        let news = UpdateInput {
            directories,
            first,
            folders,
            placed: placed.chain(placed_by(self.steps)).collect(),
        };
        if let (Ldconfig::Auto, Some(loader)) = (ldconfig, &self.container.loader) {
            return Ok(CacheUpdate::Builtin(loader, news));
        }
        let program = ahead.take_ldconfig(ldconfig)?;
        let prepared = PreparedLdconfig::new(program, directories, self.options.no_pivot)?;
        Ok(CacheUpdate::Run(prepared, news))
    }
}

/// Makes the namespace thread open and clone a file of the image.
fn clone_from_image<'a>(
    path: &'a ContainerPath,
    kind: BindKind,
    requests: Option<&Sender<NamespaceRequest<'a>>>,
) -> Result<ReadySource> {
    let gone = || Error::system("namespace association failed", Errno::ESRCH);
    let (reply, answer) = mpsc::channel();
    let request = NamespaceRequest::CloneFromImage { path, kind, reply };
    let sent = requests.and_then(|requests| requests.send(request).ok());
    sent.ok_or_else(gone)?;
    answer.recv().map_err(|_| gone())?
}

/// Returns true if a step binds the node of an IMEX channel, which may not exist until everything else is prepared.
fn is_late(step: &Step) -> bool {
    match &step.action {
        Action::BindDevice { source, .. } => source.parent() == HostPath::new(IMEX_DIRECTORY),
        _ => false,
    }
}

/// Returns true if steps mount files of the image, which can only be opened in the container's namespace.
pub(super) fn needs_image(steps: &[Step]) -> bool {
    let is_image = |step: &Step| {
        matches!(
            step.action,
            Action::Bind {
                source: Source::Image(_),
                ..
            }
        )
    };
    steps.iter().any(is_image)
}

/// Returns the files and links that steps put into the container and that can be libraries.
pub(super) fn placed_by<'s>(
    steps: impl IntoIterator<Item = &'s Step>,
) -> impl Iterator<Item = ContainerPath> {
    let places = steps.into_iter().filter_map(library);
    places.cloned()
}

/// Returns the path at which a step puts a file that can be a library, or a link to one.
fn library(step: &Step) -> Option<&ContainerPath> {
    match &step.action {
        Action::Bind { at, kind, .. } if kind.is_file() => Some(at),
        Action::Symlink { at, .. } => Some(at),
        _ => None,
    }
}
