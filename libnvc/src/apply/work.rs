//! Prepares a plan outside the container: every source opened, checked and cloned before the first effect.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};

use nix::errno::Errno;

use super::ldcache::News;
use super::ldconfig::Prepared;
use super::session::Order;
use super::source::{Expected, HostSources, ReadySource};
use super::tmpfs::NewTmpfs;
use super::{Ahead, ApplyOptions};
use crate::container::loader::Loader;
use crate::container::{CgroupVersion, Container};
use crate::error::{Error, Result};
use crate::host::{DeviceNumber, DriverRoot};
use crate::path::ContainerPath;
use crate::plan::{BindKind, Ldconfig, Plan, Source, Step};

/// A plan whose sources are checked and open: what can be found wrong without touching the container is found.
pub(super) struct Work<'a> {
    /// In the order in which they are carried out; first those after which the ld.so.cache can be updated.
    pub(super) tasks: Vec<Task<'a>>,
    pub(super) cache: Option<CacheUpdate<'a>>,
    /// Those with nothing that the update looks at: devices, sockets, what is in procfs. They need not wait for it.
    pub(super) further: Vec<Task<'a>>,
    /// All at once, so that each device program is replaced once.
    pub(super) devices: Option<DeviceRules>,
}

/// How the container's loader is told of new libraries.
pub(super) enum CacheUpdate<'a> {
    /// By ldconfig, for these directories.
    Run(Prepared, &'a [ContainerPath]),
    /// In this process.
    Builtin(&'a Loader, News<'a>),
}

/// A step with what it needs from the caller's namespaces.
pub(super) enum Task<'a> {
    Bind {
        source: ReadySource,
        at: &'a ContainerPath,
    },
    MountTmpfs {
        tmpfs: NewTmpfs<'a>,
        create: bool,
        at: &'a ContainerPath,
    },
    Symlink {
        at: &'a ContainerPath,
        target: &'a Path,
    },
    ShowInProfile {
        directory: &'a ContainerPath,
        minor: u32,
    },
}

/// Devices for a device cgroup.
pub(super) struct DeviceRules {
    pub(super) directory: OwnedFd,
    pub(super) version: CgroupVersion,
    /// How messages name the cgroup.
    pub(super) name: PathBuf,
    pub(super) devices: Vec<DeviceNumber>,
}

impl<'a> Work<'a> {
    /// Opens and checks everything that was not prepared ahead; call it in the caller's namespaces. Files of the image are
    /// ordered from the namespace thread, without which there must be none.
    ///
    /// Mounts are made in the plan's order, which is the order in which the mount table will show them, and attached in
    /// that order too.
    pub(super) fn prepare(
        plan: &'a Plan,
        driver_root: &DriverRoot,
        container: &'a Container,
        options: ApplyOptions,
        ahead: &mut Ahead,
        orders: Option<&Sender<Order<'a>>>,
    ) -> Result<Self> {
        let mut work = Self {
            tasks: Vec::with_capacity(plan.steps.len()),
            cache: None,
            further: Vec::new(),
            devices: None,
        };
        let mut sources = HostSources::new(driver_root);
        let mut before_cache = 0;
        let mut devices = Vec::new();
        for step in &plan.steps {
            let task = match step {
                Step::Bind {
                    source: Source::Host(path),
                    at,
                    kind,
                } => Task::Bind {
                    source: sources.open(path, Expected::Kind(*kind))?,
                    at,
                },
                Step::Bind {
                    source: Source::Image(path),
                    at,
                    kind,
                } => {
                    let gone = || Error::system("namespace association failed", Errno::ESRCH);
                    let (reply, answer) = mpsc::channel();
                    let order = Order::CloneFromImage {
                        path,
                        kind: *kind,
                        reply,
                    };
                    let sent = orders.and_then(|orders| orders.send(order).ok());
                    sent.ok_or_else(gone)?;
                    Task::Bind {
                        source: answer.recv().map_err(|_| gone())??,
                        at,
                    }
                }
                Step::BindDevice { source, number, at } => Task::Bind {
                    source: sources.open(source, Expected::Device(*number))?,
                    at,
                },
                Step::MountTmpfs {
                    at,
                    mode,
                    create,
                    files,
                } => {
                    let tmpfs = NewTmpfs::detached(*mode, files).map_err(|errno| {
                        Error::file(
                            "mount operation failed",
                            at.below(container.rootfs()),
                            errno,
                        )
                    })?;
                    Task::MountTmpfs {
                        tmpfs,
                        create: *create,
                        at,
                    }
                }
                Step::Symlink { at, target } => Task::Symlink { at, target },
                Step::ShowInProfile { directory, minor } => Task::ShowInProfile {
                    directory,
                    minor: *minor,
                },
                Step::AllowDevice { number } => {
                    devices.push(*number);
                    continue;
                }
                Step::UpdateLdCache {
                    ldconfig,
                    directories,
                } => {
                    work.cache = Some(match (ldconfig, &container.loader) {
                        (Ldconfig::Builtin, Some(loader)) => {
                            let mut placed = container.placed();
                            placed.extend(placed_by(plan));
                            CacheUpdate::Builtin(
                                loader,
                                News {
                                    directories,
                                    placed,
                                },
                            )
                        }
                        _ => {
                            let program = ahead.take_ldconfig(ldconfig)?;
                            let mut prepared =
                                Prepared::with(program, directories, options.no_pivot)?;
                            if options.stay {
                                prepared = prepared.sharing_memory();
                            }
                            CacheUpdate::Run(prepared, directories)
                        }
                    });
                    continue;
                }
            };
            work.tasks.push(task);
            if library(step).is_some() {
                before_cache = work.tasks.len();
            }
        }
        work.further = work.tasks.split_off(before_cache);
        if let (false, Some(cgroup)) = (devices.is_empty(), container.device_cgroup()) {
            let directory = container.open_device_cgroup(cgroup)?;
            let (version, name) = (cgroup.version, cgroup.directory.clone());
            work.devices = Some(DeviceRules {
                directory,
                version,
                name,
                devices,
            });
        }
        Ok(work)
    }
}

/// Whether a plan mounts files of the image, which only who is in the container's namespace can open.
pub(super) fn needs_image(plan: &Plan) -> bool {
    let is_image = |step: &Step| {
        matches!(
            step,
            Step::Bind {
                source: Source::Image(_),
                ..
            }
        )
    };
    plan.steps.iter().any(is_image)
}

/// The files and links that a plan puts into the container and that can be libraries.
fn placed_by(plan: &Plan) -> impl Iterator<Item = ContainerPath> {
    plan.steps.iter().filter_map(|step| library(step).cloned())
}

/// Where a step puts what can be a library, or a link to one.
fn library(step: &Step) -> Option<&ContainerPath> {
    match step {
        Step::Bind {
            at,
            kind: BindKind::File,
            ..
        }
        | Step::Symlink { at, .. } => Some(at),
        _ => None,
    }
}

/// Remembers for a later plan what this one has put into the container, if that plan will ask.
pub(super) fn note_placed(plan: &Plan, container: &Container) {
    if container.loader.is_some() {
        container.note_placed(placed_by(plan));
    }
}
