//! Applies a plan by descriptor, all or nothing.
//!
//! First, intents become steps for this image. Host sources are opened, checked and cloned in the caller's mount
//! namespace, all of them before the first effect. A short-lived thread then enters the container's namespace, opens
//! the container's root there and executes the steps; the caller's threads never move, unless the caller sets
//! [`stay`](ApplyOptions::stay). Each effect is recorded in a journal. If a required step fails, everything is undone
//! in reverse order; if a best-effort step fails, only its own effects are.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};

use crate::container::Container;
use crate::error::{Error, Result, errno_of};
use crate::host::{DriverRoot, ProcFile, procfs};
use crate::options::Ldconfig;
use crate::path::ContainerPath;
use crate::plan::Intent;
use crate::sys;

mod cache_update;
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))] // `testing` exports parts of it
pub(crate) mod cgroup;
mod entrance;
mod executor;
mod expand;
mod journal;
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub))]
pub(crate) mod ldconfig;
mod lock;
mod look;
pub(crate) mod mount;
mod prepare;
mod replace;
mod saved_file;
mod steps;
mod usable;
mod volumes;

use executor::Executor;
use look::ContainerView;
use prepare::{NamespaceRequest, Preparation, PreparedPlan, SkippedIntents};
use steps::Step;

/// Descriptors in addition to those of the steps: the caller's, the sandbox's, directories.
const USUAL_DESCRIPTORS: usize = 64;

/// Options for applying a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyOptions<'a> {
    /// Confine ldconfig with a move and chroot instead of pivot_root, for roots on a ramdisk.
    pub no_pivot: bool,
    /// The process will exit after reporting the result. If it has a single thread, that thread then enters the
    /// container itself and **stays there**, with the container's root as its root and working directory, and with
    /// umask 0. (If files of the image are mounted, a second thread is needed anyway.) Without it a `configure` takes
    /// 1.2 to 1.4 times as long, because it starts a thread and waits for it.
    pub stay: bool,
    /// The image's CUDA compatibility libraries, if they differ from the discovered ones.
    pub compat_libraries: Option<&'a [ContainerPath]>,
    /// Change nothing on volumes, not even what the container's owner may change there.
    pub no_volumes: bool,
    /// Files and links that earlier plans have put into the container, which a builtin update of the library path
    /// examines in addition to this plan's.
    pub placed: &'a [ContainerPath],
}

/// The result of a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// Errors of failed best-effort intents.
    pub skipped: Vec<Error>,
    /// Files and links put into the container that can be libraries.
    pub placed: Vec<ContainerPath>,
}

/// Work that does not depend on the plan and can be done while waiting for NVML.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    ldconfig: Option<(Ldconfig, Result<ldconfig::Program>)>,
    /// The host's files of /proc/driver/nvidia.
    proc_files: Option<Vec<ProcFile>>,
}

impl Ahead {
    /// Opens, checks and copies the host's ldconfig, if the container uses it. Call this in the caller's namespaces. An
    /// error is kept until a plan runs ldconfig.
    ///
    /// Also reads the driver's files in procfs, of which the container gets copies.
    pub(crate) fn prepare(container: &Container, root: &DriverRoot) -> Self {
        let ldconfig = &container.image.ldconfig;
        let is_ours = matches!(ldconfig, Ldconfig::Host(_));
        Self {
            ldconfig: is_ours.then(|| (ldconfig.clone(), ldconfig::Program::open(ldconfig))),
            proc_files: Some(procfs::files(root)),
        }
    }

    /// Returns the program; opens it now if another one was expected.
    fn take_ldconfig(&mut self, wanted: &Ldconfig) -> Result<ldconfig::Program> {
        match self.ldconfig.take() {
            Some((prepared, program)) if prepared == *wanted => program,
            _ => ldconfig::Program::open(wanted),
        }
    }
}

/// Applies a plan to a container.
///
/// # Errors
/// The first failure of a required intent, after everything has been undone; failures of the undo accompany it
/// ([`Error::cleanup`]). Failures of ldconfig have the kind [`LdCache`](crate::ErrorKind::LdCache).
pub fn apply(
    intents: &[Intent],
    root: &DriverRoot,
    container: &Container,
    options: ApplyOptions<'_>,
) -> Result<Report> {
    let nothing = || {};
    apply_with(
        intents,
        root,
        container,
        options,
        Ahead::default(),
        &nothing,
    )
}

/// Does the same with the work prepared ahead. When everything else on the host's side is prepared, `last_on_host` creates
/// the nodes of the plan's IMEX channels, which stay if the plan fails.
pub(crate) fn apply_with(
    intents: &[Intent],
    root: &DriverRoot,
    container: &Container,
    options: ApplyOptions<'_>,
    mut ahead: Ahead,
    last_on_host: &dyn Fn(),
) -> Result<Report> {
    let _lock = lock::ContainerLock::take(&container.process)?;
    let proc_files = ahead.proc_files.take();
    let look = ContainerView::new(container, root);
    let (steps, skipped) = match options.compat_libraries {
        None => expand::expand(intents, &container.image, root, look, proc_files)?,
        Some(libraries) => {
            let mut image = container.image.clone();
            image.compat_libraries = libraries.to_vec();
            expand::expand(intents, &image, root, look, proc_files)?
        }
    };
    let preparation = Preparation {
        steps: &steps,
        root,
        container,
        options,
        last_on_host,
    };
    let skipped = if options.stay && !prepare::needs_image(&steps) && sys::process::is_alone() {
        let work = preparation.prepare(skipped, &mut ahead, None)?;
        Executor::enter(container, options.no_volumes)?.execute(work, root)?
    } else {
        in_a_thread(&preparation, |requests| {
            preparation.prepare(skipped, &mut ahead, Some(requests))
        })?
    };
    let done = |step: &&Step| !skipped.has(step.intent);
    Ok(Report {
        placed: prepare::placed_by(steps.iter().filter(done)).collect(),
        skipped: skipped.reasons,
    })
}

/// Applies the plan on a separate thread, which enters the container while the steps are prepared.
fn in_a_thread<'a>(
    preparation: &Preparation<'a, '_>,
    prepare: impl FnOnce(&Sender<NamespaceRequest<'a>>) -> Result<PreparedPlan<'a>>,
) -> Result<SkippedIntents> {
    let Preparation {
        steps,
        root,
        container,
        options,
        ..
    } = *preparation;
    // Each step keeps one or two descriptors until the end. If they do not fit, the first failing lookup reports it.
    // Threads wait for each other when their descriptor table grows.
    let room = sys::descriptors::reserve(
        container.namespace.fd.as_fd(),
        2 * steps.len() + USUAL_DESCRIPTORS,
    );
    if let Err(errno) = room {
        log::debug!(
            "no room for the descriptors of {} steps: {errno}",
            steps.len()
        );
    }
    // Entering a mount namespace needs unshared filesystem state (CLONE_FS), which only a new thread can have without
    // affecting the caller.
    std::thread::scope(|scope| {
        let (requests, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nvc:[container]".into())
            .spawn_scoped(scope, move || {
                Executor::enter(container, options.no_volumes)?.serve(&inbox, root)
            })
            .map_err(|e| Error::system("thread creation failed", errno_of(&e)))?;
        let failed = match prepare(&requests) {
            // The thread may have ended; its result has the reason.
            Ok(work) => {
                let request = NamespaceRequest::Execute(Box::new(work));
                requests.send(request).err().and(None)
            }
            Err(error) => Some(error),
        };
        drop(requests);
        let result = thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (result, failed) {
            (Err(error), _) | (Ok(_), Some(error)) => Err(error),
            (Ok(skipped), None) => Ok(skipped),
        }
    })
}
