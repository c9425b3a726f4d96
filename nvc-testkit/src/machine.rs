//! Makes the machine that the tests run on: a private mount namespace, scratch space, a loaded driver.
//!
//! The harness enters the namespace before it starts threads. All of a test program's mounts, and what a faulty program
//! under test mounts in the wrong place, go with it when the program ends, however it ends.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fs, io};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::driver::{Builder, Driver};
use crate::{files, mounts};

static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
const NO_DATA: Option<&str> = None;

/// The machine while the tests run; to be left with [`leave`](Self::leave).
#[derive(Debug)]
#[must_use]
pub struct Machine {
    scratch: tempfile::TempDir,
    private: bool,
}

impl Machine {
    /// Enters a private mount namespace, if this process may, and makes scratch space there.
    ///
    /// # Errors
    /// The process has several threads, or a system call fails that root may expect to succeed.
    pub fn enter() -> io::Result<Self> {
        let scratch = tempfile::Builder::new().prefix("nvc-tests-").tempdir()?;
        let private = is_root();
        if private {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(NO_DATA, "/", NO_DATA, private, NO_DATA)?;
            // Reachable by every user; a file system of its own, so that nothing is ever removed from the disk.
            let (tmpfs, data) = (Some("tmpfs"), Some("mode=755"));
            mount(tmpfs, scratch.path(), tmpfs, MsFlags::empty(), data)?;
        }
        // A second machine in one process would find the first one's scratch space; there is none.
        let _ = SCRATCH.set(scratch.path().to_owned());
        Ok(Self { scratch, private })
    }

    /// Removes the scratch space.
    ///
    /// # Errors
    /// It is still in use.
    pub fn leave(self) -> io::Result<()> {
        if self.private {
            umount2(self.scratch.path(), MntFlags::MNT_DETACH)?;
        }
        self.scratch.close()
    }
}

/// A directory of a test's own, with mode 0755; what is mounted below it is detached before it is removed.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("t-")
            .tempdir_in(scratch_base())?;
        files::mode(directory.path(), 0o755)?;
        Ok(Self(directory))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        files::below(self.path(), path.as_ref())
    }
}

impl Drop for Scratch {
    /// Leaves the directory to the end of the namespace when it cannot be made safe to remove.
    fn drop(&mut self) {
        if mounts::detach_below(self.path()).is_err() {
            self.0.disable_cleanup(true);
        }
    }
}

/// The simulated driver that is loaded on this machine, built at the first call: /proc/devices and /proc/driver show it
/// if this process is root. Tests must not change it; those that need another one build their own.
///
/// # Panics
/// It cannot be built: no test makes sense then.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<(Driver, Scratch)> = OnceLock::new();
    let (driver, _) = DRIVER.get_or_init(|| {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("scratch space: {error}"));
        let driver = Builder::default()
            .build(scratch.path())
            .and_then(|driver| show(driver.root()).map(|()| driver))
            .unwrap_or_else(|error| panic!("simulated driver: {error}"));
        (driver, scratch)
    });
    driver
}

/// Lets /proc/devices and /proc/driver of this namespace show what a driver root has there.
///
/// # Errors
/// They cannot be mounted.
pub fn show(driver_root: &Path) -> io::Result<()> {
    if !is_root() || SCRATCH.get().is_none() {
        return Ok(());
    }
    for path in SHOWN {
        let source = files::below(driver_root, Path::new(path));
        mount(Some(&source), path, NO_DATA, MsFlags::MS_BIND, NO_DATA)?;
    }
    Ok(())
}

/// Undoes the last [`show`], so that its driver root can be removed.
///
/// # Errors
/// Nothing is shown.
pub fn hide() -> io::Result<()> {
    for path in SHOWN {
        umount2(path, MntFlags::MNT_DETACH)?;
    }
    Ok(())
}

/// What a loaded driver has outside of its root.
const SHOWN: [&str; 2] = ["/proc/devices", "/proc/driver"];

/// Where all scratch directories of this process are.
pub fn scratch_base() -> PathBuf {
    SCRATCH.get().cloned().unwrap_or_else(std::env::temp_dir)
}

/// Whether this process is root, which decides whether the machine is private.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Shell text that shows the machine without a driver in a mount namespace that was made from this one.
pub const WITHOUT_DRIVER: &str = "umount /proc/devices && umount /proc/driver";

/// Mount point of the cgroup hierarchy of a version with which devices are controlled, 1 or 2.
pub fn cgroup_hierarchy(version: u32) -> Option<PathBuf> {
    let table = mounts::of("self").ok()?;
    let hierarchy = table.into_iter().find(|mount| match version {
        1 => {
            mount.fs_type == "cgroup"
                && mount.super_options.iter().any(|option| option == "devices")
        }
        _ => mount.fs_type == "cgroup2",
    })?;
    let procs = hierarchy.point.join("cgroup.procs");
    fs::OpenOptions::new().write(true).open(procs).ok()?;
    Some(hierarchy.point)
}
