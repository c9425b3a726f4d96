//! Sets up the machine for the tests: a private mount namespace, scratch space, a loaded driver.
//!
//! The harness enters the namespace before it starts threads. All mounts of a test program, including misplaced mounts
//! of a faulty program under test, vanish with the namespace however the program ends.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fs, io};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::driver::{Builder, Driver, free_majors, use_majors_of};
use crate::{files, mounts};

static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
const NO_DATA: Option<&str> = None;

/// The machine during the tests; leave it with [`leave`](Self::leave).
#[derive(Debug)]
#[must_use]
pub struct Machine {
    scratch: tempfile::TempDir,
    private: bool,
}

impl Machine {
    /// Enters a private mount namespace, if this process may, and sets up scratch space there.
    ///
    /// # Errors
    /// The process has several threads, or a system call fails that root may expect to succeed.
    pub fn enter() -> io::Result<Self> {
        let private = is_root();
        let mut scratch = tempfile::Builder::new();
        let scratch = scratch.prefix("nvc-tests-");
        // No driver may be below a directory of all users.
        let scratch = if private {
            scratch.tempdir_in("/var/lib")?
        } else {
            scratch.tempdir()?
        };
        if private {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(NO_DATA, "/", NO_DATA, private, NO_DATA)?;
            // Accessible to every user; a separate filesystem, so that nothing is ever removed from the disk.
            let (tmpfs, data) = (Some("tmpfs"), Some("mode=755"));
            mount(tmpfs, scratch.path(), tmpfs, MsFlags::empty(), data)?;
        }
        // A second machine in one process would use the first one's scratch space; there is none.
        let _ = SCRATCH.set(scratch.path().to_owned());
        use_majors_of(|| {
            if is_root() {
                driver().majors()
            } else {
                free_majors()
            }
        });
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

/// A test's own directory, with mode 0755; mounts below it are detached before it is removed.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Creates a directory.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("t-")
            .tempdir_in(scratch_base())?;
        files::mode(directory.path(), 0o755)?;
        Ok(Self(directory))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns a path in it.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        files::below(self.path(), path.as_ref())
    }
}

impl Drop for Scratch {
    /// Leaves the directory until the namespace ends if its mounts cannot be detached.
    fn drop(&mut self) {
        if mounts::detach_below(self.path()).is_err() {
            self.0.disable_cleanup(true);
        }
    }
}

/// Returns the simulated driver that is loaded on this machine, built on the first call: /proc/devices and /proc/driver
/// show it if this process is root. Tests must not change it; tests that need another one build it.
///
/// # Panics
/// It cannot be built, and no test could run.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<(Driver, Scratch)> = OnceLock::new();
    let (driver, _) = DRIVER.get_or_init(|| {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("scratch space: {error}"));
        let driver = Builder::default()
            .majors(free_majors())
            .build(scratch.path())
            .and_then(|driver| show(driver.root()).map(|()| driver))
            .unwrap_or_else(|error| panic!("simulated driver: {error}"));
        (driver, scratch)
    });
    driver
}

/// Mounts a driver root's /proc/devices and /proc/driver over this namespace's.
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

/// Undoes the last [`show`], so that the driver root can be removed.
///
/// # Errors
/// Nothing is mounted.
pub fn hide() -> io::Result<()> {
    for path in SHOWN {
        umount2(path, MntFlags::MNT_DETACH)?;
    }
    Ok(())
}

/// A loaded driver's files outside its root.
const SHOWN: [&str; 2] = ["/proc/devices", "/proc/driver"];

/// Returns the parent of all scratch directories of this process.
pub fn scratch_base() -> PathBuf {
    SCRATCH.get().cloned().unwrap_or_else(std::env::temp_dir)
}

/// Returns true if this process is root, which decides whether the machine is private.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Shell commands that remove the driver from a mount namespace copied from this one.
pub const WITHOUT_DRIVER: &str = "umount /proc/devices && umount /proc/driver";

/// Returns the mount point of the hierarchy that controls devices, for version 1 or 2.
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
