//! Sets up a loaded driver and containers for measurements.
//!
//! If the conformance fixture exists, real files with a mock NVML, its driver is used, because upstream's recorded
//! figures were measured with it; otherwise the simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use nix::mount::{MsFlags, mount};
use nvc_testkit::driver::Builder;
use nvc_testkit::files;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};

/// A loaded driver, and a container root to copy.
pub(crate) struct Bed {
    pub(crate) name: &'static str,
    /// True if upstream's figures were measured with it.
    pub(crate) is_fixture: bool,
    /// The driver root.
    pub(crate) driver: PathBuf,
    /// The program that makes the minimum of calls; empty if there is none.
    pub(crate) baseline: PathBuf,
    roots: Roots,
    _scratch: Option<Scratch>,
}

/// Source of a container's root.
enum Roots {
    /// A copy of a directory, in memory.
    Copy(PathBuf),
    /// An overlay of directories, topmost first, under an empty one in memory.
    Overlay(Vec<PathBuf>),
}

/// A container's root, removed on drop.
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    /// The directory that contains it.
    pub(crate) scratch: Scratch,
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
    pub(crate) fn find(baseline: Option<&Path>) -> io::Result<Self> {
        // It runs in the root directory.
        let baseline = baseline.map(fs::canonicalize).transpose()?;
        let mut bed = Self::driver()?;
        bed.baseline = baseline.unwrap_or_default();
        Ok(bed)
    }

    fn driver() -> io::Result<Self> {
        let fixture = cached("NVC_FIXTURE", "nvc-conformance");
        let Some(fixture) = fixture.filter(|fixture| fixture.join(".stamp").exists()) else {
            return Self::simulated(&Builder::default());
        };
        let driver = fixture.join("droot");
        machine::show(&driver)?;
        Ok(Self {
            name: "the conformance fixture: files of a real 535 driver, a mock NVML with two GPUs",
            is_fixture: true,
            driver,
            baseline: PathBuf::new(),
            roots: Roots::Copy(fixture.join("rootfs/debian")),
            _scratch: None,
        })
    }

    /// Loads a simulated driver.
    pub(crate) fn simulated(builder: &Builder) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let driver = builder.build(scratch.join("driver"))?;
        machine::show(driver.root())?;
        let template = rootfs::Builder::new(Layout::Debian).build(scratch.join("template"))?;
        Ok(Self {
            name: "the simulated driver",
            is_fixture: false,
            driver: driver.root().to_owned(),
            baseline: PathBuf::new(),
            roots: Roots::Copy(template),
            _scratch: Some(scratch),
        })
    }

    /// Loads the simulated driver, with containers whose roots are overlays of these directories.
    pub(crate) fn on_layers(layers: Vec<PathBuf>) -> io::Result<Self> {
        let mut bed = Self::simulated(&Builder::default())?;
        bed.roots = Roots::Overlay(layers);
        Ok(bed)
    }

    /// Creates a container root.
    pub(crate) fn root(&self) -> io::Result<Root> {
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
            Roots::Overlay(layers) => overlay(layers, &scratch, &path)?,
        }
        Ok(Root { path, scratch })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = machine::hide() {
            eprintln!("nvc-bench: the driver stays loaded: {error}");
        }
    }
}

/// Mounts layers with a writable one in memory on top, as a runtime does.
fn overlay(layers: &[PathBuf], scratch: &Scratch, path: &Path) -> io::Result<()> {
    for name in ["root", "upper", "work"] {
        files::directory(&scratch.join(name))?;
    }
    let layers: Vec<_> = layers.iter().map(|layer| layer.to_string_lossy()).collect();
    let (lower, base) = (layers.join(":"), scratch.path().display());
    let data = format!("lowerdir={lower},upperdir={base}/upper,workdir={base}/work");
    let (overlay, data) = (Some("overlay"), Some(data.as_str()));
    Ok(mount(overlay, path, overlay, MsFlags::empty(), data)?)
}
