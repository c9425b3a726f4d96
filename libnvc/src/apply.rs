//! Carries a plan out by descriptor, all or nothing.
//!
//! First, intents become steps for this image. Host sources are opened, checked and cloned in the
//! caller's mount namespace, all of them before the first effect. A short-lived thread then enters the container's
//! namespace, opens the container's root there and works through the steps; the caller's threads never move, unless the
//! caller [says](ApplyOptions::stay) that its only one may. Each effect is recorded. If something fails that the
//! container cannot do without, everything is undone in reverse; of anything else, its own effects.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};

use crate::container::{Container, Ldconfig};
use crate::error::{Error, Result, errno_of};
use crate::host::{DriverRoot, ProcFile, procfs};
use crate::path::ContainerPath;
use crate::plan::Intent;
use crate::sys;

mod authority;
pub(crate) mod cgroup;
mod executor;
mod journal;
pub mod ldconfig;
mod lock;
pub(crate) mod mount;
mod prepare;
mod saved_file;
mod steps;

pub use cgroup::{DeviceRules, allow as allow_devices};

use executor::{Executor, Order};
use prepare::{GivenUp, Preparation, PreparedPlan};
use steps::Step;

/// Descriptors beside those of the steps: the caller's, the sandbox's, directories.
const USUAL_DESCRIPTORS: usize = 64;

/// What the caller can say about how a plan is carried out.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyOptions<'a> {
    /// Confine ldconfig with a move and chroot instead of pivot_root, for roots on a ramdisk.
    pub no_pivot: bool,
    /// The process will only report the result and exit. Then its thread, if it is the only one, enters the container
    /// itself and **stays there**, with the container's root as its root and working directory, and without umask (unless
    /// files of the image are mounted, which takes a thread on either side). The process that becomes ldconfig need not be
    /// a copy of it either, and it gives up being dumpable for that. Starting a thread and copying a process take a tenth
    /// of a whole configuration.
    pub stay: bool,
    /// The image's CUDA compatibility libraries, if they are others than were found.
    pub compat_libraries: Option<&'a [ContainerPath]>,
    /// Files and links that earlier plans have put into the container: what a builtin update of the library path looks at
    /// besides those of this plan.
    pub placed: &'a [ContainerPath],
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// Why the container must do without some of what it should have had.
    pub skipped: Vec<Error>,
    /// Files and links that were put into the container and that can be libraries.
    pub placed: Vec<ContainerPath>,
}

/// What carrying out a plan needs but can be made before there is one, while NVML is waited for.
#[derive(Debug, Default)]
pub struct Ahead {
    ldconfig: Option<(Ldconfig, Result<ldconfig::Program>)>,
    /// The host's files of /proc/driver/nvidia.
    proc_files: Option<Vec<ProcFile>>,
}

impl Ahead {
    /// Opens, checks and copies the host's ldconfig, if the container is to have it. To be called in the caller's
    /// namespaces. What is wrong with it is kept until a plan runs it.
    ///
    /// And reads the driver's files in procfs, of which the container gets copies.
    pub fn prepare(container: &Container, root: &DriverRoot) -> Self {
        let ldconfig = &container.image.ldconfig;
        let is_ours = matches!(ldconfig, Ldconfig::Host(_));
        Self {
            ldconfig: is_ours.then(|| (ldconfig.clone(), ldconfig::Program::open(ldconfig))),
            proc_files: Some(procfs::files(root)),
        }
    }

    /// The program, now if it is another than was expected.
    fn take_ldconfig(&mut self, wanted: &Ldconfig) -> Result<ldconfig::Program> {
        match self.ldconfig.take() {
            Some((prepared, program)) if prepared == *wanted => program,
            _ => ldconfig::Program::open(wanted),
        }
    }
}

/// Carries out a plan in a container.
///
/// # Errors
/// The first failure of something that the container cannot do without, after everything that was done is undone;
/// failures of the undoing accompany it ([`Error::cleanup`]). Failures of ldconfig have the kind
/// [`LdCache`](crate::ErrorKind::LdCache).
pub fn apply(
    intents: &[Intent],
    root: &DriverRoot,
    container: &Container,
    options: ApplyOptions<'_>,
) -> Result<Report> {
    apply_prepared(intents, root, container, options, Ahead::default())
}

/// The same with what was prepared ahead.
///
/// # Errors
/// Those of [`apply`], in the same order.
pub fn apply_prepared(
    intents: &[Intent],
    root: &DriverRoot,
    container: &Container,
    options: ApplyOptions<'_>,
    mut ahead: Ahead,
) -> Result<Report> {
    let _lock = lock::ContainerLock::take(&container.process)?;
    let proc_files = ahead.proc_files.take();
    let steps = match options.compat_libraries {
        None => steps::expand(intents, &container.image, root, proc_files),
        Some(libraries) => {
            let mut image = container.image.clone();
            image.compat_libraries = libraries.to_vec();
            steps::expand(intents, &image, root, proc_files)
        }
    };
    let preparation = Preparation {
        steps: &steps,
        root,
        container,
        options,
    };
    let given_up = if options.stay && !prepare::needs_image(&steps) && sys::process::is_alone() {
        let work = preparation.prepare(&mut ahead, None)?;
        Executor::enter(container)?.carry_out(work, root)?
    } else {
        in_a_thread(steps.len(), root, container, |orders| {
            preparation.prepare(&mut ahead, Some(orders))
        })?
    };
    let done = |step: &&Step| !given_up.has(step.intent);
    Ok(Report {
        placed: prepare::placed_by(steps.iter().filter(done)).collect(),
        skipped: given_up.reasons,
    })
}

/// Carries work out on a thread of its own, which enters the container while the work is prepared.
fn in_a_thread<'a>(
    steps: usize,
    root: &DriverRoot,
    container: &'a Container,
    prepare: impl FnOnce(&Sender<Order<'a>>) -> Result<PreparedPlan<'a>>,
) -> Result<GivenUp> {
    // Each step keeps a descriptor or two until the end. Without room for them the first look-up that misses says so.
    // Threads wait for each other when their table of descriptors grows.
    let room = sys::descriptors::reserve(
        container.namespace.fd.as_fd(),
        2 * steps + USUAL_DESCRIPTORS,
    );
    if let Err(errno) = room {
        log::debug!("no room for the descriptors of {steps} steps: {errno}");
    }
    // Entering a mount namespace needs file-system state of its own (CLONE_FS), which only a new thread can have without
    // disturbing the caller.
    std::thread::scope(|scope| {
        let (orders, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nvc:[container]".into())
            .spawn_scoped(scope, move || {
                Executor::enter(container)?.obey(&inbox, root)
            })
            .map_err(|e| Error::system("thread creation failed", errno_of(&e)))?;
        let failed = match prepare(&orders) {
            // The thread may have ended already; it says why.
            Ok(work) => {
                let order = Order::CarryOut(Box::new(work));
                orders.send(order).err().and(None)
            }
            Err(error) => Some(error),
        };
        drop(orders);
        let result = thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (result, failed) {
            (Err(error), _) | (Ok(_), Some(error)) => Err(error),
            (Ok(given_up), None) => Ok(given_up),
        }
    })
}
