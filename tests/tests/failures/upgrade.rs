//! Tests a driver that is upgraded while `configure` runs: the discovered files change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvc_testkit::container::Container;
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{Test, test};
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::{Fault, Profile};
use nvc_testkit::userland;
use nvc_tests::{State, configure_on, debian};

use super::paused;

/// Name, the change to a library (`$1`) while the query runs, and the resulting message.
const CHANGES: &[(&str, &str, &str)] = &[
    (
        "removed",
        "rm \"$1\"",
        "stat failed: LIBRARY: no such file or directory",
    ),
    (
        "became_a_directory",
        "rm \"$1\"; mkdir \"$1\"",
        "unexpected source file mode 40755 for LIBRARY",
    ),
    (
        "became_a_fifo",
        "rm \"$1\"; mkfifo -m 644 \"$1\"",
        "unexpected source file mode 10644 for LIBRARY",
    ),
    (
        "became_a_loop",
        "ln -sf \"$(basename \"$1\")\" \"$1\"",
        "stat failed: LIBRARY: too many levels of symbolic links",
    ),
    (
        "its_directory_is_gone",
        "mv \"$(dirname \"$1\")\" \"$(dirname \"$1\").old\"",
        "stat failed: …: no such file or directory",
    ),
];

const ARGUMENTS: &[&str] = &["--utility", "--compute", "--device=0"];
const NEXT: &str = "575.51.03";

pub(crate) fn tests() -> Vec<Test> {
    let mut tests: Vec<_> = CHANGES
        .iter()
        .map(|&(name, change, message)| {
            test(format!("library_{name}"), &[Root], move || {
                library_changes(change, message);
            })
        })
        .collect();
    tests.extend(nvc_testkit::tests![&[Root];
        a_replaced_library_is_the_new_one,
        a_truncated_library_is_mounted_as_it_is,
        a_new_driver_before_its_cache,
        a_new_module_before_its_libraries,
        everything_is_new,
        a_device_node_is_made_again,
    ]);
    tests
}

struct Machine {
    driver: Driver,
    container: Container,
    before: State,
    scratch: Scratch,
}

impl Machine {
    fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        let driver = Builder::default().build(scratch.join("driver")).unwrap();
        let container = debian();
        let before = State::of(&container);
        Self {
            driver,
            container,
            before,
            scratch,
        }
    }

    fn library(&self, name: &str) -> PathBuf {
        let file = format!("/LIB/{name}.so.VER");
        self.driver.path(self.driver.fill(&file))
    }

    fn pause(&self) -> paused::Paused<'_> {
        paused::configure(&self.driver, &self.container, ARGUMENTS)
    }

    /// Changes the root as if the next driver were installed, including its cache.
    fn install_next(&self) {
        let next = self.scratch.join("next");
        let builder = Builder::new(profile(NEXT));
        let next = builder.build(&next).unwrap();
        let (old, new) = (self.library("libcuda"), next.path(next.fill("/LIB")));
        let directory = old.parent().unwrap();
        fs::rename(directory, self.scratch.join("old")).unwrap();
        fs::rename(new, directory).unwrap();
        let version = "/proc/driver/nvidia/version";
        fs::copy(next.path(version), self.driver.path(version)).unwrap();
        ldconfig(self.driver.root());
    }
}

fn profile(version: &str) -> Profile {
    Profile {
        driver: version.into(),
        ..Profile::default()
    }
}

fn ldconfig(root: &Path) {
    let mut command = Command::new(userland::host_ldconfig());
    assert!(command.arg("-r").arg(root).status().unwrap().success());
}

fn library_changes(change: &str, message: &str) {
    let machine = Machine::new();
    let library = machine.library("libnvidia-opencl");
    let paused = machine.pause();
    let mut shell = Command::new("sh");
    shell.args(["-c", change, "sh"]).arg(&library);
    assert!(shell.status().unwrap().success());
    let outcome = paused.resume(&Profile::default());
    let last = outcome.message();
    let message = message.replace("LIBRARY", library.to_str().unwrap());
    let expected = format!("nvidia-container-cli: mount error: {message}");
    let (start, end) = expected.split_once('…').unwrap_or((&expected, ""));
    assert!(
        outcome.status == Some(1) && last.starts_with(start) && last.ends_with(end),
        "{outcome:#?}"
    );
    assert_eq!(outcome.orphans, [""; 0]);
    machine.before.assert_unchanged(&machine.container);
}

/// As package managers do: the new file is renamed to the old name, and is another inode.
fn a_replaced_library_is_the_new_one() {
    let machine = Machine::new();
    let library = machine.library("libnvidia-opencl");
    let paused = machine.pause();
    let new = library.with_extension("new");
    fs::write(&new, "the new one").unwrap();
    fs::rename(new, &library).unwrap();
    let outcome = paused.resume(&Profile::default());
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    let inside = machine.driver.fill("/LIB/libnvidia-opencl.so.VER");
    let inside = machine.container.inside(inside);
    assert_eq!(fs::read(inside).unwrap(), b"the new one");
}

/// Nothing is mapped, so a file that is truncated meanwhile does not kill the process.
fn a_truncated_library_is_mounted_as_it_is() {
    let machine = Machine::new();
    let libraries = ["libnvidia-tls", "libcuda", "libnvidia-opencl"];
    let paused = machine.pause();
    for name in libraries {
        fs::write(machine.library(name), "").unwrap();
    }
    let outcome = paused.resume(&Profile::default());
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    let inside = machine.driver.fill("/LIB/libcuda.so.VER");
    let inside = machine.container.inside(inside);
    assert_eq!(fs::read(inside).unwrap(), b"");
}

/// NVML answers as the new driver, but the cache lists the old driver's libraries.
fn a_new_driver_before_its_cache() {
    let machine = Machine::new();
    let paused = machine.pause();
    let outcome = paused.resume(&profile(NEXT));
    let text = format!("there are no libraries of driver {NEXT}");
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert!(outcome.message().contains(&text), "{outcome:#?}");
    machine.before.assert_unchanged(&machine.container);
}

fn a_new_module_before_its_libraries() {
    let machine = Machine::new();
    let paused = machine.pause();
    let mismatch = Fault::Fail {
        symbol: "nvmlInit_v2".into(),
        code: 18,
        gpu: None,
    };
    let outcome = paused.resume(&Profile::default().fault(mismatch));
    let text =
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch";
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert_eq!(outcome.message(), text, "{outcome:#?}");
    machine.before.assert_unchanged(&machine.container);
}

/// All files are exchanged at once; the second try finds everything of the new driver.
fn everything_is_new() {
    let machine = Machine::new();
    let paused = machine.pause();
    machine.install_next();
    let outcome = paused.resume(&Profile::default());
    let last = outcome.message();
    assert!(
        outcome.status == Some(1)
            && last.starts_with("nvidia-container-cli: mount error: stat failed: ")
            && last.ends_with(": no such file or directory"),
        "{outcome:#?}"
    );
    machine.before.assert_unchanged(&machine.container);
    machine.driver.answer(&profile(NEXT)).unwrap();
    configure_on(&machine.driver, &machine.container, ARGUMENTS).succeeds();
    let new = machine.before.new_mounts(&machine.container);
    let end = format!("/libcuda.so.{NEXT} nodev,nosuid,ro");
    assert!(new.iter().any(|line| line.ends_with(&end)), "{new:#?}");
}

/// nvidia-modprobe recreates nodes; one with another number is not mistaken for the GPU's.
fn a_device_node_is_made_again() {
    let machine = Machine::new();
    let paused = machine.pause();
    let node = machine.driver.path("/dev/nvidia0");
    fs::remove_file(&node).unwrap();
    symlink("/dev/null", &node).unwrap();
    let outcome = paused.resume(&Profile::default());
    let text = format!(
        "nvidia-container-cli: mount error: GPU 0: invalid device node: {}",
        node.display()
    );
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert_eq!(outcome.message(), text);
    machine.before.assert_unchanged(&machine.container);
}
