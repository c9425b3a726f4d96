//! Kernels and sandboxes without the newer system calls: the same result by other ways.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use nvc_testkit::cli::{self, Run};
use nvc_testkit::container::{self, Container};
use nvc_testkit::harness::{self, Need::Root};
use nvc_testkit::machine;
use nvc_tests::{State, command_line, debian_root, host_ldconfig, mounts_inside, start};

/// What the mount API came with, in 5.2 and 5.12.
const MOUNT_API: &[&str] = &[
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "mount_setattr",
];
/// Everything that Linux 4.18, of RHEL 8, does not have.
fn since_4_18() -> Vec<&'static str> {
    [MOUNT_API, &["openat2", "close_range", "clone3"]].concat()
}

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        without_openat2,
        without_mount_setattr,
        without_the_mount_api,
        without_anything_new,
        in_a_sandbox_that_forbids_openat2,
        a_second_time,
        rolls_back,
        rolls_back_propagation,
        leaks_nothing,
        never_without_a_sealed_copy,
    ])
}

/// The program beside the command line.
fn shim() -> PathBuf {
    cli::program()
        .expect("the program")
        .with_file_name("nvc-without")
}

fn configure_without(calls: &[&str], container: &Container, options: &[&str]) -> Run {
    let mut command = Command::new(shim());
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

/// What the ordinary way makes of a container, and what the way without some calls makes of another.
fn same_without(calls: &[&str]) {
    let (ordinary, other) = (new_container(), new_container());
    configure_without(&[], &ordinary, &[]).succeeds();
    configure_without(calls, &other, &[]).succeeds();
    assert_eq!(mounts_inside(&other), mounts_inside(&ordinary));
    let files = |container: &Container| container.files().unwrap();
    assert_eq!(files(&other).changes_since(&files(&ordinary)), [""; 0]);
}

fn new_container() -> Container {
    start(container::Builder::new(debian_root().no_programs()))
}

fn without_openat2() {
    same_without(&["openat2"]);
}

fn without_mount_setattr() {
    same_without(&["mount_setattr"]);
}

fn without_the_mount_api() {
    same_without(MOUNT_API);
}

fn without_anything_new() {
    same_without(&since_4_18());
}

fn in_a_sandbox_that_forbids_openat2() {
    same_without(&["EPERM", "openat2"]);
}

fn a_second_time() {
    let container = new_container();
    configure_without(&since_4_18(), &container, &[]).succeeds();
    let before = mounts_inside(&container);
    configure_without(&since_4_18(), &container, &[]).succeeds();
    assert_eq!(mounts_inside(&container), before);
}

fn rolls_back() {
    // Where a socket must go, after the libraries and programs.
    let builder = debian_root()
        .no_programs()
        .directory("/run/nvidia-fabricmanager/socket");
    let container = start(container::Builder::new(builder));
    let before = State::of(&container);
    configure_without(&since_4_18(), &container, &[]).fails();
    before.assert_unchanged(&container);
}

fn rolls_back_propagation() {
    let builder = debian_root()
        .no_programs()
        .directory("/run/nvidia-fabricmanager/socket");
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
    configure_without(&since_4_18(), &container, &[]).fails();
    assert_eq!(shared(), before);
}

fn leaks_nothing() {
    let container = start(container::Builder::new(debian_root().no_programs()).shared());
    let on_host = || {
        let mounts = nvc_testkit::mounts::of("self").unwrap();
        nvc_testkit::mounts::below(&mounts, container.root()).count()
    };
    let before = on_host();
    configure_without(&since_4_18(), &container, &[]).succeeds();
    assert_eq!(on_host(), before);
}

fn never_without_a_sealed_copy() {
    let container = new_container();
    let before = State::of(&container);
    let text = configure_without(&["memfd_create"], &container, &[]).fails();
    assert!(
        text.starts_with("nvidia-container-cli: ldcache error: "),
        "{text}"
    );
    before.assert_unchanged(&container);
}
