//! Tests kernels and sandboxes without the newer system calls: the same result by other means.

#![allow(clippy::unwrap_used)]

use std::iter;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use nvc_testkit::cli::{self, Run};
use nvc_testkit::container::{self, Container};
use nvc_testkit::harness::{self, Need::Root, Need::Tracing, test};
use nvc_testkit::machine::Scratch;
use nvc_testkit::{faults, machine};
use nvc_tests::{State, command_line, debian_root, host_ldconfig, mounts_inside, start};

/// Calls that can be missing without any loss.
const DISPENSABLE: &[&str] = &[
    "clone3",
    "close_range",
    "copy_file_range",
    "faccessat2",
    "fsconfig",
    "fsmount",
    "fsopen",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "openat2",
    "statmount",
    "statx",
];
/// Versions with different sets of additions, including those of RHEL 8, Ubuntu 20.04 and Debian 11.
const VERSIONS: &[&str] = &[
    "linux-4.18",
    "linux-5.2",
    "linux-5.4",
    "linux-5.6",
    "linux-5.8",
    "linux-5.10",
    "linux-5.15",
    "linux-6.1",
];

/// Linux 4.18, of RHEL 8, the oldest.
const OLDEST: &[&str] = &["linux-4.18"];

fn main() -> ExitCode {
    let needs = &[Root];
    let mut tests = Vec::new();
    // The copy of ldconfig is optional if there is an overlay, see `never_the_file_itself`.
    for call in DISPENSABLE.iter().chain(&["memfd_create"]) {
        let name = format!("without_{call}");
        tests.push(test(name, needs, || same_without(&[call])));
        // The C library creates threads with it, and does not try another call after this answer.
        if *call != "clone3" {
            let name = format!("in_a_sandbox_that_forbids_{call}");
            tests.push(test(name, needs, || same_without(&["EPERM", call])));
        }
    }
    for version in VERSIONS {
        let name = version.replace(['-', '.'], "_");
        tests.push(test(name, needs, || same_without(&[version])));
    }
    tests.extend(nvc_testkit::tests![needs;
        without_all_that_is_dispensable,
        in_a_sandbox_that_forbids_all_of_it,
        in_a_sandbox_without_threads,
        in_a_sandbox_without_look_ups,
        a_second_time,
        rolls_back,
        rolls_back_propagation,
        leaks_nothing,
        never_the_file_itself,
    ]);
    tests.push(test("with_old_answers", &[Root, Tracing], with_old_answers));
    harness::main(tests)
}

/// Returns the program built beside the running test.
fn shim() -> PathBuf {
    cli::beside("nvc-without").expect("the test's own place")
}

fn configure_without(calls: &[&str], container: &Container, options: &[&str]) -> Run {
    configure_within(Command::new(shim()), calls, container, options)
}

fn configure_within(
    mut command: Command,
    calls: &[&str],
    container: &Container,
    options: &[&str],
) -> Run {
    command.args(calls).arg("--");
    let pid = format!("--pid={}", container.pid());
    let ldconfig = host_ldconfig();
    let mut arguments = vec!["configure", &pid, "--no-cgroups", &ldconfig];
    arguments.extend(["--utility", "--compute", "--graphics", "--device=all"]);
    arguments.extend(options);
    let mut line = command_line(machine::driver(), &arguments);
    line.push(container.root().into());
    Run::within(command, line)
}

/// Compares the effects of a normal run with those of a run without some calls.
fn same_without(calls: &[&str]) {
    let (ordinary, other) = (new_container(), new_container());
    configure_without(&[], &ordinary, &[]).succeeds();
    configure_without(calls, &other, &[]).succeeds();
    assert_eq!(mounts_inside(&other), mounts_inside(&ordinary));
    let files = |container: &Container| container.files().unwrap();
    assert_eq!(files(&other).changes_since(&files(&ordinary)), [""; 0]);
}

/// Changes in memory that a filter cannot see: statx knows nothing about mounts, clone nothing about CLONE_PIDFD.
fn with_old_answers() {
    let (ordinary, other) = (new_container(), new_container());
    let scratch = Scratch::new().unwrap();
    configure_without(&[], &ordinary, &[]).succeeds();
    for _ in 0..2 {
        let mut command = faults::old_kernel(&scratch.join("report")).unwrap();
        command.arg(shim());
        configure_within(command, OLDEST, &other, &[]).succeeds();
    }
    assert_eq!(mounts_inside(&other), mounts_inside(&ordinary));
}

fn new_container() -> Container {
    start(container::Builder::new(debian_root().no_programs()))
}

fn without_all_that_is_dispensable() {
    same_without(DISPENSABLE);
}

fn in_a_sandbox_that_forbids_all_of_it() {
    // Without the last remaining call for lookups.
    let calls = DISPENSABLE.iter().filter(|call| **call != "faccessat2");
    let words: Vec<_> = iter::once("EPERM").chain(calls.copied()).collect();
    same_without(&words);
}

/// Checks that it fails without changes.
fn refused_without(calls: &[&str], start: &str) {
    let container = new_container();
    let before = State::of(&container);
    let text = configure_without(calls, &container, &[]).fails();
    assert!(text.starts_with(start), "{text}");
    before.assert_unchanged(&container);
}

/// The emulation of lookups needs one of the two.
fn in_a_sandbox_without_look_ups() {
    let container = new_container();
    let before = State::of(&container);
    let calls = ["EPERM", "openat2", "faccessat2"];
    let text = configure_without(&calls, &container, &[]).fails();
    assert!(text.ends_with("operation not permitted"), "{text}");
    before.assert_unchanged(&container);
}

/// The C library could not create a thread; the program needs none.
fn in_a_sandbox_without_threads() {
    same_without(&["EPERM", "clone3"]);
}

fn a_second_time() {
    let container = new_container();
    configure_without(OLDEST, &container, &[]).succeeds();
    let before = mounts_inside(&container);
    configure_without(OLDEST, &container, &[]).succeeds();
    assert_eq!(mounts_inside(&container), before);
}

fn last_library() -> &'static str {
    machine::driver()
        .fill("/LIB/libnvidia-glvkspirv.so.VER")
        .leak()
}

fn rolls_back() {
    // Directory of the last library.
    let builder = debian_root().no_programs().directory(last_library());
    let container = start(container::Builder::new(builder));
    let before = State::of(&container);
    configure_without(OLDEST, &container, &[]).fails();
    before.assert_unchanged(&container);
}

fn rolls_back_propagation() {
    let builder = debian_root().no_programs().directory(last_library());
    let container = start(container::Builder::new(builder).shared());
    let shared = || -> Vec<bool> {
        let mounts = container.mounts().unwrap();
        let below = nvc_testkit::mounts::below(&mounts, container.root());
        below
            .map(|mount| {
                mount
                    .propagation
                    .iter()
                    .any(|how| how.starts_with("shared"))
            })
            .collect()
    };
    let before = shared();
    assert!(before.contains(&true));
    configure_without(OLDEST, &container, &[]).fails();
    assert_eq!(shared(), before);
}

fn leaks_nothing() {
    let container = start(container::Builder::new(debian_root().no_programs()).shared());
    let on_host = || {
        let mounts = nvc_testkit::mounts::of("self").unwrap();
        nvc_testkit::mounts::below(&mounts, container.root()).count()
    };
    let before = on_host();
    configure_without(OLDEST, &container, &[]).succeeds();
    assert_eq!(on_host(), before);
}

/// Neither a read-only overlay nor a copy of ldconfig is possible: the container could write to the executed file, the
/// host's own.
fn never_the_file_itself() {
    let text = "nvidia-container-cli: ldcache error: copying to memory failed: ";
    refused_without(&["fsopen", "memfd_create"], text);
    refused_without(&["EPERM", "fsopen", "memfd_create"], text);
    refused_without(&["linux-4.18", "memfd_create"], text);
}
