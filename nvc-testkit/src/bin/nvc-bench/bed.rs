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
use nvc_testkit::driver::{self, Driver};
use nvc_testkit::files;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::Profile;
use nvc_testkit::rootfs::{self, Layout};

/// A loaded driver, and a container root to copy.
pub(crate) struct Bed {
    /// Its name.
    pub(crate) name: &'static str,
    /// True if upstream's figures were measured with it.
    pub(crate) is_fixture: bool,
    driver: PathBuf,
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
    scratch: Scratch,
}

impl Root {
    /// Returns a path outside the root that is removed with it.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }
}

/// The device cgroup of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cgroup {
    /// None: the command runs without cgroup changes.
    None,
    /// Of version 1.
    V1,
    /// Of version 2, with one program.
    V2,
}

impl Bed {
    /// Uses the conformance fixture, or else the simulated driver.
    ///
    /// # Errors
    /// It cannot be made or shown.
    pub(crate) fn find() -> io::Result<Self> {
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
        let fixture = env::var_os("NVC_FIXTURE").map(PathBuf::from);
        let fixture = fixture.or_else(|| Some(cache?.join("nvc-conformance")));
        match fixture.filter(|fixture| fixture.join(".stamp").exists()) {
            Some(fixture) => Self::fixture(&fixture),
            None => Self::simulated(&driver::Builder::default()),
        }
    }

    fn fixture(fixture: &Path) -> io::Result<Self> {
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
    pub(crate) fn simulated(builder: &driver::Builder) -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let driver: Driver = builder.build(scratch.join("driver"))?;
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

    /// Loads a simulated driver with this many GPUs, and MIG devices on each.
    ///
    /// # Errors
    /// It cannot be made or shown.
    pub(crate) fn of_size(gpus: u32, migs_each: u32) -> io::Result<Self> {
        Self::simulated(&driver::Builder::new(Profile::of_size(gpus, migs_each)))
    }

    /// Returns the driver root.
    pub(crate) fn driver(&self) -> &Path {
        &self.driver
    }

    /// Changes the source of container roots.
    #[must_use]
    pub(crate) fn with_roots(mut self, roots: Roots) -> Self {
        self.roots = roots;
        self
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
                run(Command::new("cp").arg("-a").args([template, &path]))?;
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
    let overlay = Some("overlay");
    mount(
        overlay,
        path,
        overlay,
        MsFlags::empty(),
        Some(data.as_str()),
    )?;
    Ok(())
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

/// Runs a command that must succeed.
///
/// # Errors
/// It fails.
pub(crate) fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {text}")))
}
