//! Sets up a loaded driver and containers for measurements.
//!
//! If the conformance fixture exists, real files with a mock NVML, its driver is used; otherwise the simulated driver.

use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

use nix::mount::{MsFlags, mount};
use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::driver::Builder;
use nvc_testkit::files;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};

/// A loaded driver, and a container root to copy.
pub(crate) struct Bed {
    /// True if it is the conformance fixture's.
    pub(crate) is_fixture: bool,
    /// The driver root.
    pub(crate) driver: PathBuf,
    roots: Roots,
    scratch: Scratch,
}

/// Source of a container's root.
enum Roots {
    /// A copy of a directory, in memory.
    Copy(PathBuf),
    /// An overlay of directories, topmost first, under an empty one in memory.
    Overlay(Vec<PathBuf>),
}

/// Returns the directory named by `variable`, or one in the user's cache.
pub(crate) fn cached(variable: &str, name: &str) -> Option<PathBuf> {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    let home = || path("HOME").map(|home| home.join(".cache"));
    let cache = || path("XDG_CACHE_HOME").or_else(home);
    path(variable).or_else(|| Some(cache()?.join(name)))
}

impl Bed {
    /// Uses the conformance fixture, or else the simulated driver.
    pub(crate) fn usual() -> io::Result<Self> {
        let fixture = cached("NVC_FIXTURE", "nvc-conformance");
        match fixture.filter(|fixture| fixture.join(".stamp").exists()) {
            None => Self::simulated(&Builder::default()),
            Some(fixture) => {
                let roots = Roots::Copy(fixture.join("rootfs/debian"));
                Self::load(true, fixture.join("droot"), roots, Scratch::new()?)
            }
        }
    }

    /// Loads a simulated driver.
    pub(crate) fn simulated(builder: &Builder) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let driver = builder.build(scratch.join("driver"))?.root().to_owned();
        let template = rootfs::Builder::new(Layout::Debian).build(scratch.join("template"))?;
        Self::load(false, driver, Roots::Copy(template), scratch)
    }

    /// Loads the simulated driver, with containers whose roots are overlays of these directories.
    pub(crate) fn on_layers(layers: Vec<PathBuf>) -> io::Result<Self> {
        let mut bed = Self::simulated(&Builder::default())?;
        bed.roots = Roots::Overlay(layers);
        Ok(bed)
    }

    fn load(is_fixture: bool, driver: PathBuf, roots: Roots, scratch: Scratch) -> io::Result<Self> {
        for (name, source) in [("baseline", Source::Baseline), ("trace", Source::Trace)] {
            files::file(&scratch.join(name), &compiled(source, &[])?[..], 0o755)?;
        }
        machine::show(&driver)?;
        Ok(Self {
            is_fixture,
            driver,
            roots,
            scratch,
        })
    }

    /// Returns the path of a program of the kit: `baseline` or `trace`.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Creates a container root, named `root` in its own directory.
    pub(crate) fn root(&self) -> io::Result<Scratch> {
        let scratch = Scratch::new()?;
        let path = scratch.join("root");
        match &self.roots {
            Roots::Copy(template) => {
                let mut copy = Command::new("cp");
                let status = copy.arg("-a").args([template, &path]).status()?;
                if !status.success() {
                    return Err(io::Error::other(format!("{copy:?}: {status}")));
                }
            }
            // With a writable layer in memory on top, as a runtime does.
            Roots::Overlay(layers) => {
                for name in ["root", "upper", "work"] {
                    files::directory(&scratch.join(name))?;
                }
                let layers: Vec<_> = layers.iter().map(|layer| layer.to_string_lossy()).collect();
                let (lower, base) = (layers.join(":"), scratch.path().display());
                let data = format!("lowerdir={lower},upperdir={base}/upper,workdir={base}/work");
                let overlay = Some("overlay");
                mount(overlay, &path, overlay, MsFlags::empty(), Some(&*data))?;
            }
        }
        Ok(scratch)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = machine::hide() {
            eprintln!("nvc-bench: the driver stays loaded: {error}");
        }
    }
}
