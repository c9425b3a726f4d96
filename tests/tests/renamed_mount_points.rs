//! Tests that a process in another mount namespace may rename a new mount point, on kernels that mount by name.
//!
//! The process sees the same files as the container, such as a sidecar with the same volume. They are mount points only
//! in the container's namespace, so nothing prevents the rename. A tracer triggers it at the worst moment: when
//! mount(2) has returned. The mount must then be restricted and in its place, or not exist. On newer kernels, a
//! system-call filter removes the newer calls; scripts/test/old-kernel.sh runs the same tests on a real Linux 5.10.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::libc;
use nvc_testkit::cli::{self, Run};
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::faults::{self, Report};
use nvc_testkit::harness::{self, Need::Root, Need::Tracing};
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::plan::{self, Wanted};
use nvc_tests::{State, command_line, debian_root, host_ldconfig, start};

/// Linux 4.18, of RHEL 8, and 5.10, of Debian 11: the first lacks the newer mount calls, the second one of them.
const KERNELS: [&str; 2] = ["linux-4.18", "linux-5.10"];

const REPLACED: &str = "its mount point has been replaced";

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root, Tracing];
        undisturbed,
        a_name_of_an_earlier_mount,
        a_name_of_no_mount,
        a_directory_under_a_tmpfs,
        a_mount_that_cannot_be_restricted,
        a_racer_as_fast_as_it_can,
    ])
}

/// One bind mount takes three calls of mount(2): the bind, its attributes, its propagation.
const CALLS_OF_A_BIND: usize = 3;

/// A planned mount: its mount point, and the index of the mount(2) call that makes it.
#[derive(Debug)]
struct Planned {
    is_tmpfs: bool,
    /// True if it is a required bind mount.
    is_required_bind: bool,
    at: PathBuf,
    call: usize,
}

fn new_container() -> Container {
    let root = debian_root().no_programs().file("/etc/other", "", 0o644);
    start(Builder::new(root.directory("/etc/nvidia/other")))
}

/// Returns `configure` with additional arguments.
fn line(container: &Container, words: &[&str]) -> Vec<std::ffi::OsString> {
    let (pid, ldconfig) = (format!("--pid={}", container.pid()), host_ldconfig());
    let mut all = vec!["configure", &pid, "--no-cgroups", &ldconfig];
    all.extend(["--utility", "--compute", "--graphics", "--device=0"]);
    all.extend(words);
    let mut line = command_line(machine::driver(), &all);
    line.push(container.root().into());
    line
}

/// Returns the plan's mounts in order, on such a kernel.
fn planned(kernel: &str) -> Vec<Planned> {
    let container = new_container();
    let json = Run::cli(line(&container, &["--dry-run", "--format=json"])).succeeds();
    let plan = serde_json::from_str(&json).unwrap();
    let mut call = 0;
    let mut planned = Vec::new();
    for step in plan::steps(&plan, machine::driver()) {
        let is_tmpfs = step.wanted == Wanted::Tmpfs;
        planned.push(Planned {
            is_required_bind: !is_tmpfs && step.is_required,
            is_tmpfs,
            at: step.at,
            call,
        });
        call += if is_tmpfs {
            // Made without a name if there is fsopen(2).
            usize::from(kernel == KERNELS[0])
        } else {
            CALLS_OF_A_BIND
        };
    }
    planned
}

fn find(planned: &[Planned], is_it: impl Fn(&Planned) -> bool) -> &Planned {
    planned.iter().find(|mount| is_it(mount)).unwrap()
}

/// Runs `configure` on such a kernel while a tracer intervenes at a call.
fn traced(kernel: &str, container: &Container, mut command: std::process::Command) -> Run {
    command.arg(cli::beside("nvc-without").unwrap());
    command.arg(kernel).arg("--");
    Run::within(command, line(container, &[]))
}

/// Exchanges the names as soon as the first one is mounted. Nothing may stay mounted.
fn exchanged(kernel: &str, mount: &Planned, other: &Path) {
    let container = new_container();
    let scratch = Scratch::new().unwrap();
    let report = scratch.join("report");
    let names = (container.point(&mount.at), container.point(other));
    let before = State::of(&container);
    let call = ("mount", mount.call);
    let command = faults::exchanging(call, (&names.0, &names.1), &report).unwrap();
    let text = traced(kernel, &container, command).fails();
    let hit = Report::read(&report).unwrap().hit;
    assert_eq!(hit, Some(libc::SYS_mount), "no names were exchanged");
    assert!(text.ends_with(REPLACED), "{kernel}: {text}");
    assert_eq!(before.new_mounts(&container), [""; 0], "{kernel}: {text}");
}

/// Checks the counts of calls, and that the tracer alone changes nothing.
fn undisturbed() {
    for kernel in KERNELS {
        let plan = planned(kernel);
        let container = new_container();
        let scratch = Scratch::new().unwrap();
        let report = scratch.join("report");
        let before = State::of(&container);
        let command = faults::command(None, &report).unwrap();
        traced(kernel, &container, command).succeeds();
        let calls = Report::read(&report).unwrap().calls;
        let mounts = calls["main"]
            .iter()
            .filter(|call| **call == libc::SYS_mount);
        let last = plan.last().unwrap();
        assert_eq!(mounts.count(), last.call + CALLS_OF_A_BIND, "{kernel}");
        for mount in before.new_mounts(&container) {
            assert!(is_restricted(&mount), "{kernel}: {mount}");
        }
    }
}

/// Otherwise the earlier mount would be restricted twice, and the new one would stay writable.
fn a_name_of_an_earlier_mount() {
    for kernel in KERNELS {
        let plan = planned(kernel);
        let binds: Vec<_> = plan.iter().filter(|mount| mount.is_required_bind).collect();
        exchanged(kernel, binds[1], &binds[0].at);
    }
}

/// There would be no mount to restrict or unmount by that name.
fn a_name_of_no_mount() {
    for kernel in KERNELS {
        let plan = planned(kernel);
        let bind = find(&plan, |mount| mount.is_required_bind);
        exchanged(kernel, bind, Path::new("/etc/other"));
    }
}

/// Files would be written into another directory. The profile is best effort.
fn a_directory_under_a_tmpfs() {
    let plan = planned(KERNELS[0]);
    let profile = find(&plan, |mount| {
        mount.is_tmpfs && mount.at.starts_with("/etc")
    });
    // A tmpfs is made without a name if possible: Linux 5.10 has the calls.
    let container = new_container();
    let scratch = Scratch::new().unwrap();
    let report = scratch.join("report");
    let other = container.point("/etc/nvidia/other");
    let names = (container.point(&profile.at), other.clone());
    let before = State::of(&container);
    let call = ("mount", profile.call);
    let command = faults::exchanging(call, (&names.0, &names.1), &report).unwrap();
    let run = traced(KERNELS[0], &container, command).outcome().unwrap();
    let hit = Report::read(&report).unwrap().hit;
    assert_eq!(hit, Some(libc::SYS_mount), "no names were exchanged");
    assert_eq!(run.status, Some(0), "{run:?}");
    assert!(run.stderr.trim_end().ends_with(REPLACED), "{run:?}");
    let mut new = before.new_mounts(&container).into_iter();
    assert!(new.all(|mount| !mount.contains("etc/nvidia")), "{run:?}");
    assert_eq!(fs::read_dir(other).unwrap().count(), 0);
}

/// It is unmounted, with all mounts before it.
fn a_mount_that_cannot_be_restricted() {
    for (kernel, step) in [(KERNELS[0], 1), (KERNELS[0], 2), (KERNELS[1], 1)] {
        let plan = planned(kernel);
        let bind = plan.iter().filter(|mount| mount.is_required_bind).nth(1);
        let call = bind.unwrap().call;
        let container = new_container();
        let scratch = Scratch::new().unwrap();
        let before = State::of(&container);
        let report = scratch.join("report");
        let command = faults::failing(("mount", call + step), libc::EPERM, &report).unwrap();
        let text = traced(kernel, &container, command).fails();
        assert!(text.ends_with("operation not permitted"), "{text}");
        before.assert_unchanged(&container);
    }
}

/// The same without a tracer: the names of two libraries are exchanged continuously.
fn a_racer_as_fast_as_it_can() {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    use std::sync::atomic::{AtomicBool, Ordering};

    let plan = planned(KERNELS[0]);
    let binds: Vec<_> = plan.iter().filter(|mount| mount.is_required_bind).collect();
    let mut endings = [0, 0];
    for number in 0..harness::cases(12, 400) {
        let container = new_container();
        let before = State::of(&container);
        let [one, other] = [0, 1].map(|bind: usize| container.point(&binds[bind].at));
        let stop = AtomicBool::new(false);
        let kernel = KERNELS[number % 2];
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = RenameFlags::RENAME_EXCHANGE;
                    // Fails until both exist.
                    let _ = renameat2(AT_FDCWD, &one, AT_FDCWD, &other, flags);
                }
            });
            let mut command = std::process::Command::new(cli::beside("nvc-without").unwrap());
            command.arg(kernel).arg("--");
            let outcome = Run::within(command, line(&container, &[])).outcome();
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap()
        });
        let new = before.new_mounts(&container);
        if outcome.status == Some(0) {
            endings[0] += 1;
        } else {
            endings[1] += 1;
            assert_eq!(new, [""; 0], "{kernel}: {outcome:#?}");
        }
        for mount in new {
            assert!(is_restricted(&mount), "{kernel}: {mount}: {outcome:#?}");
        }
    }
    println!("raced: {} configured, {} refused", endings[0], endings[1]);
}

/// Returns true if a line of [`State::new_mounts`] describes a mount that the container cannot write; tmpfs and the MPS
/// daemon's directory are writable.
fn is_restricted(mount: &str) -> bool {
    let (point, options) = mount.split_once(' ').unwrap();
    let has = |wanted| options.split(',').any(|option| option == wanted);
    let for_writing = ["proc/driver/nvidia", "tmp/nvidia-mps"].contains(&point)
        || point.ends_with("nvidia-application-profiles-rc.d");
    has("nosuid") && (has("ro") || for_writing)
}
