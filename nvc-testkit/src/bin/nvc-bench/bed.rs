//! Sets up a loaded driver and containers for measurements.
//!
//! If the conformance fixture exists, real files with a mock NVML, its driver is used, because upstream's recorded
//! figures were measured with it; otherwise the simulated driver.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use nix::mount::{MsFlags, mount};
use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::container::{self, Container};
use nvc_testkit::driver::Builder;
use nvc_testkit::files;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};

/// A loaded driver, and a container root to copy.
pub(crate) struct Bed {
    /// Its name.
    pub(crate) name: &'static str,
    /// True if upstream's figures were measured with it.
    pub(crate) is_fixture: bool,
    /// The driver root.
    pub(crate) driver: PathBuf,
    roots: Roots,
    _scratch: Option<Scratch>,
}

/// Source of a container's root.
#[derive(Clone, Debug)]
pub(crate) enum Roots {
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

/// The device cgroup of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cgroup {
    /// None: the command runs without cgroup changes.
    None,
    V1,
    /// Of version 2, with one program.
    V2,
}

/// Returns the directory named by `variable`, or one in the user's cache.
pub(crate) fn cached(variable: &str, name: &str) -> Option<PathBuf> {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    path(variable).or_else(|| {
        let home = || path("HOME").map(|home| home.join(".cache"));
        Some(path("XDG_CACHE_HOME").or_else(home)?.join(name))
    })
}

impl Bed {
    /// Uses the conformance fixture, or else the simulated driver.
    ///
    /// # Errors
    /// It cannot be made or shown.
    pub(crate) fn find() -> io::Result<Self> {
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
            roots: Roots::Copy(fixture.join("rootfs/debian")),
            _scratch: None,
        })
    }

    /// Loads a simulated driver.
    ///
    /// # Errors
    /// It cannot be made or shown.
    pub(crate) fn simulated(builder: &Builder) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let driver = builder.build(scratch.join("driver"))?;
        machine::show(driver.root())?;
        let template = rootfs::Builder::new(Layout::Debian).build(scratch.join("template"))?;
        Ok(Self {
            name: "the simulated driver",
            is_fixture: false,
            driver: driver.root().to_owned(),
            roots: Roots::Copy(template),
            _scratch: Some(scratch),
        })
    }

    /// Loads the simulated driver, with containers whose roots are overlays of these directories.
    ///
    /// # Errors
    /// It cannot be made or shown.
    pub(crate) fn on_layers(layers: Vec<PathBuf>) -> io::Result<Self> {
        let mut bed = Self::simulated(&Builder::default())?;
        bed.roots = Roots::Overlay(layers);
        Ok(bed)
    }

    /// Creates a container root.
    ///
    /// # Errors
    /// It cannot be copied or mounted.
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
    // Short names, because the mount options must fit in one page.
    let mut lower = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let link = scratch.join(format!("l{number}"));
        symlink(layer, &link)?;
        lower.push(link.to_string_lossy().into_owned());
    }
    for name in ["root", "upper", "work"] {
        files::directory(&scratch.join(name))?;
    }
    let data = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.join(":"),
        scratch.join("upper").display(),
        scratch.join("work").display()
    );
    let (overlay, data) = (Some("overlay"), Some(data.as_str()));
    Ok(mount(overlay, path, overlay, MsFlags::empty(), data)?)
}

/// Starts a container on a root, in a cgroup.
///
/// # Errors
/// It cannot be started.
pub(crate) fn start(root: &Path, cgroup: Cgroup) -> io::Result<Container> {
    let mut container = container::Builder::on(root).start()?;
    match cgroup {
        Cgroup::None => {}
        Cgroup::V1 => container.join(DeviceCgroup::v1()?)?,
        Cgroup::V2 => container.join(DeviceCgroup::v2()?.attach(Attach::Multi, &["1:3"])?)?,
    }
    Ok(container)
}
