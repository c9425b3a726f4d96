//! Provides common parts of the end-to-end tests: a default container, a default `configure`, and comparisons.

pub mod apply;
pub mod arena;
pub mod bundle;
pub mod capi;
pub mod hook_matrix;
pub mod plan;
pub mod world;

use std::ffi::OsString;
use std::path::Path;

use nvc_testkit::cli::Run;
use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::container::{self, Container};
use nvc_testkit::driver::Driver;
use nvc_testkit::machine::Scratch;
use nvc_testkit::mounts::{self, Mount};
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::tree::Tree;
use nvc_testkit::{files, machine, userland};

/// Starts a default container with a Debian root without programs.
///
/// # Panics
/// It cannot be started.
pub fn debian() -> Container {
    start(container::Builder::new(debian_root().no_programs()))
}

/// Describes the root of a default container.
pub fn debian_root() -> rootfs::Builder {
    rootfs::Builder::new(Layout::Debian)
}

/// Starts a container.
///
/// # Panics
/// It cannot be started.
#[track_caller]
#[allow(clippy::needless_pass_by_value)] // reads as one expression where it is called
pub fn start(builder: container::Builder) -> Container {
    builder
        .start()
        .unwrap_or_else(|error| panic!("no container: {error}"))
}

/// Prepares a command on the machine's driver: `info`, `list`.
pub fn on_driver(arguments: &[&str]) -> Run {
    Run::cli(command_line(machine::driver(), arguments))
}

/// Returns `--root=R` and the arguments.
pub fn command_line(driver: &Driver, arguments: &[&str]) -> Vec<OsString> {
    let mut root = OsString::from("--root=");
    root.push(driver.root());
    let mut line = vec![root];
    line.extend(arguments.iter().map(OsString::from));
    line
}

/// Returns `--ldconfig=` with this machine's ldconfig.
pub fn host_ldconfig() -> String {
    format!("--ldconfig=@{}", userland::host_ldconfig().display())
}

/// Returns `--ldconfig=` with a program that fails, in a scratch directory: the last step of `configure`. It is compiled
/// with these additional arguments.
///
/// # Panics
/// It cannot be made.
pub fn failing_ldconfig(scratch: &Scratch, arguments: &[String]) -> String {
    let path = scratch.join("ldconfig");
    compiled(Source::Failure, arguments)
        .and_then(|program| files::file(&path, program.as_slice(), 0o755))
        .unwrap_or_else(|error| panic!("no failing program: {error}"));
    format!("--ldconfig=@{}", path.display())
}

/// Prepares `configure` with a driver and a container as a runtime's hook runs it, without cgroups.
pub fn configure_on(driver: &Driver, container: &Container, arguments: &[&str]) -> Run {
    let pid = format!("--pid={}", container.pid());
    let ldconfig = host_ldconfig();
    let mut words = vec!["configure", &ldconfig, "--no-cgroups", &pid];
    words.extend(arguments);
    let mut line = command_line(driver, &words);
    line.push(container.root().into());
    Run::cli(line)
}

/// Does the same with the machine's driver.
pub fn configure(container: &Container, arguments: &[&str]) -> Run {
    configure_on(machine::driver(), container, arguments)
}

/// A snapshot of a container and the host around it.
#[derive(Debug)]
pub struct State {
    mounts: Vec<Mount>,
    files: Tree,
    inside: Tree,
    host: Vec<Mount>,
}

impl State {
    /// Takes a snapshot of a container.
    ///
    /// # Panics
    /// It has ended.
    #[track_caller]
    pub fn of(container: &Container) -> Self {
        let look = || {
            Ok::<_, std::io::Error>(Self {
                mounts: container.mounts()?,
                files: container.files()?,
                inside: container.files_inside()?,
                // Other tests mount below their own roots in parallel.
                host: mounts::below(&mounts::of("self")?, container.root())
                    .cloned()
                    .collect(),
            })
        };
        look().unwrap_or_else(|error| panic!("cannot look at the container: {error}"))
    }

    /// Fails unless nothing has changed: mounts, files below them, files as the container sees them, the host's mounts.
    ///
    /// # Panics
    /// Something changed.
    #[track_caller]
    pub fn assert_unchanged(&self, container: &Container) {
        let changes = self.changes(container);
        assert!(changes.is_empty(), "{changes:#?}");
    }

    /// Returns the changes: mounts, files below them, files as the container sees them, the host's mounts.
    ///
    /// # Panics
    /// The container has ended.
    #[track_caller]
    pub fn changes(&self, container: &Container) -> Vec<String> {
        let now = Self::of(container);
        let mut changes = Vec::new();
        for (place, before, after) in [
            ("mount", &self.mounts, &now.mounts),
            ("on the host: mount", &self.host, &now.host),
        ] {
            let (new, gone) = mounts::delta(before, after);
            changes.extend(new.iter().map(|mount| format!("{place} + {mount:?}")));
            changes.extend(gone.iter().map(|mount| format!("{place} - {mount:?}")));
        }
        let files = now.files.changes_since(&self.files);
        changes.extend(files.iter().map(|line| format!("file {line}")));
        let inside = now.inside.changes_since(&self.inside);
        changes.extend(inside.iter().map(|line| format!("seen inside {line}")));
        changes
    }

    /// Fails if one of the container's mounts is visible on the host.
    ///
    /// # Panics
    /// It does.
    #[track_caller]
    pub fn assert_host_unchanged(&self, container: &Container) {
        let (new, gone) = mounts::delta(&self.host, &Self::of(container).host);
        assert!(
            new.is_empty() && gone.is_empty(),
            "on the host: + {new:#?} - {gone:#?}"
        );
    }

    /// Returns the new mounts, sorted: `usr/bin/nvidia-smi nodev,nosuid,ro`, without atime options.
    ///
    /// # Panics
    /// A mount vanished, or the container ended.
    #[track_caller]
    pub fn new_mounts(&self, container: &Container) -> Vec<String> {
        // A shared mount may become a slave, so that nothing propagates.
        let without_propagation = |table: &[Mount]| -> Vec<Mount> {
            let mut table = table.to_vec();
            table.iter_mut().for_each(|mount| mount.propagation.clear());
            table
        };
        let now = Self::of(container).mounts;
        let (new, gone) = mounts::delta(
            &without_propagation(&self.mounts),
            &without_propagation(&now),
        );
        assert!(gone.is_empty(), "unmounted: {gone:#?}, mounted: {new:#?}");
        let mut lines: Vec<_> = new.iter().map(|mount| describe(mount, container)).collect();
        lines.sort();
        lines
    }

    /// Returns the changes below the mounts: lines of [`Tree::changes_since`], without the linker cache.
    ///
    /// # Panics
    /// The container ended.
    #[track_caller]
    pub fn new_files(&self, container: &Container) -> Vec<String> {
        let mut changes = Self::of(container).files.changes_since(&self.files);
        changes.retain(|line| !line.contains(" etc/ld.so.cache "));
        changes
    }
}

/// Returns a container's relevant mounts, sorted, without anything that differs between any two containers, such as
/// ids.
///
/// # Panics
/// The container has ended.
pub fn mounts_inside(container: &Container) -> Vec<String> {
    let root = container.root();
    // All containers' roots are on one filesystem, each in its own directory.
    let directory = root.parent().and_then(Path::file_name).unwrap_or_default();
    let image = Path::new("/").join(directory).join("rootfs");
    let table = container.mounts();
    let table = table.unwrap_or_else(|error| panic!("cannot look at the container: {error}"));
    let below = table.iter().filter_map(|mount| {
        let point = mount.point.strip_prefix(root).ok()?;
        let source = mount.root.strip_prefix(&image).unwrap_or(&mount.root);
        let propagation = &mount.propagation;
        Some(format!(
            "{} {} {} {:?} {propagation:?}",
            point.display(),
            mount.fs_type,
            source.display(),
            mount.options
        ))
    });
    let mut below: Vec<String> = below.filter(|line| !line.starts_with(' ')).collect();
    below.sort();
    below
}

fn describe(mount: &Mount, container: &Container) -> String {
    let point = mount.point.strip_prefix(container.root());
    let point = point.unwrap_or(&mount.point).display();
    let options: Vec<_> = mount
        .options
        .iter()
        .filter(|option| !option.ends_with("atime"))
        .map(String::as_str)
        .collect();
    format!("{point} {}", options.join(","))
}

/// Returns the lines of a text with the driver's placeholders expanded, sorted like [`State::new_mounts`].
pub fn lines(text: &str) -> Vec<String> {
    let text = machine::driver().fill(text);
    let trimmed = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut lines: Vec<_> = trimmed.map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Compares line by line; fails unless both are equal.
///
/// # Panics
/// They differ.
#[track_caller]
pub fn assert_lines(found: &[String], expected: &str) {
    let expected = lines(expected);
    let mut found = found.to_vec();
    found.sort();
    let missing: Vec<_> = expected
        .iter()
        .filter(|line| !found.contains(line))
        .collect();
    let surplus: Vec<_> = found
        .iter()
        .filter(|line| !expected.contains(line))
        .collect();
    assert!(
        found.len() == expected.len() && missing.is_empty() && surplus.is_empty(),
        "missing: {missing:#?} surplus: {surplus:#?}"
    );
}
