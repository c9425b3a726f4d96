//! Tests a cache after a builtin update: in later runs, for its owner, after failures.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use nvc_testkit::cli::Run;
use nvc_testkit::container::Builder;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::Test;
use nvc_testkit::helper::Helper;
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::{State, command_line, configure, debian, debian_root, start};

use super::{EVERYTHING, automatic, builtin, fallback, ldconfig, listed, native};

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root];
        again_changes_nothing,
        another_capability_later,
        other_compatibility_modes_later,
        owned_by_the_containers_owner,
        a_failed_write_undoes_everything,
        a_read_only_root,
        nothing_is_executed,
    ]
}

fn again_changes_nothing() {
    let container = debian();
    builtin(&container, EVERYTHING);
    let first = State::of(&container);
    // The development links are no longer dangling: in the second run ldconfig treats them as libraries too.
    builtin(&container, EVERYTHING);
    let lines = listed(container.root());
    assert!(
        lines.iter().any(|line| line.contains("\tlibcuda.so ")),
        "{lines:#?}"
    );
    assert_eq!(first.new_files(&container), [""; 0]);
    let second = State::of(&container);
    let log = builtin(&container, EVERYTHING);
    assert!(log.contains("is up to date"), "{log}");
    second.assert_unchanged(&container);
    // Same as the other container.
    configure(&container, EVERYTHING).succeeds();
    assert_eq!(listed(container.root()), lines);
}

fn another_capability_later() {
    let container = debian();
    builtin(&container, &["--utility", "--device=0"]);
    let log = builtin(&container, EVERYTHING);
    assert_eq!(fallback(&log), None);
    let lines = listed(container.root());
    assert!(
        lines.iter().any(|line| line.contains("libcuda.so.1 ")),
        "{lines:#?}"
    );
    configure(&container, &["--utility", "--device=0"]).succeeds();
    let all = |lines: Vec<String>| {
        lines
            .into_iter()
            .filter(|line| !line.contains(".so ("))
            .collect::<Vec<_>>()
    };
    assert_eq!(all(listed(container.root())), all(lines));
}

fn other_compatibility_modes_later() {
    let container = start(Builder::new(debian_root().no_programs().compat("999.1")));
    let in_mode = |mode: &str| {
        builtin(
            &container,
            &["--compute", &format!("--cuda-compat-mode={mode}")],
        )
    };
    in_mode("ldconfig");
    assert!(
        listed(container.root())
            .iter()
            .any(|line| line.contains("/usr/local/cuda"))
    );
    let log = in_mode("disabled");
    assert_eq!(fallback(&log), None);
    assert!(
        !listed(container.root())
            .iter()
            .any(|line| line.contains("/usr/local/cuda"))
    );
}

fn owned_by_the_containers_owner() {
    let container = start(Builder::new(debian_root().no_programs()).owner(1000));
    let log = builtin(&container, EVERYTHING);
    assert_eq!(fallback(&log), None);
    let owner = |path: &str| {
        let metadata = container
            .root()
            .join(machine::driver().fill(path))
            .symlink_metadata()
            .unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
    };
    assert_eq!(owner("etc/ld.so.cache"), (1000, 1000, 0o644));
    assert_eq!(owner("LIB/libcuda.so.1"), (1000, 1000, 0o777));
    assert!(!container.root().join("etc/ld.so.cache~").exists());
}

fn a_failed_write_undoes_everything() {
    for obstacle in ["directory", "link"] {
        let container = debian();
        // A newer library replaces this one, so a link changes.
        native(container.root(), "/LIB/libcuda.so.1.2", "libcuda.so.1");
        ldconfig(container.root(), &[]);
        let place = container.root().join("etc/ld.so.cache~");
        match obstacle {
            "link" => symlink("nowhere", &place).unwrap(),
            _ => fs::create_dir(&place).unwrap(),
        }
        let before = State::of(&container);
        let message = automatic(&container, EVERYTHING).fails();
        let text = "nvidia-container-cli: ldcache error: file creation failed: /etc/ld.so.cache: file exists";
        assert_eq!(message, text);
        before.assert_unchanged(&container);
    }
}

/// Prepared by an earlier run: nothing needs to be written. Otherwise the message gives the reason.
fn a_read_only_root() {
    let container = debian();
    let arguments = &["--utility", "--device=0"];
    builtin(&container, arguments);
    let script = format!("mount -o remount,bind,ro {}", container.root().display());
    assert!(
        container
            .enter("sh")
            .args(["-c", &script])
            .status()
            .unwrap()
            .success()
    );
    builtin(&container, arguments);
    // ldconfig, which always writes, does not run.
    configure(&container, arguments).succeeds();
}

fn nothing_is_executed() {
    let container = debian();
    let log = builtin(&container, EVERYTHING);
    assert!(!log.contains("executing"), "{log}");
}

/// The container's mounts belong to its own user namespace.
pub(crate) fn in_a_user_namespace() {
    let scratch = Scratch::new().unwrap();
    let root = debian_root()
        .no_programs()
        .build(scratch.join("root"))
        .unwrap();
    let script = "mount --bind \"$0\" \"$0\" && mount -t tmpfs x \"$0/proc\" && mount -t tmpfs x \"$0/dev\" &&
        mkdir -p \"$0/proc/driver/nvidia\" && echo ready && exec cat";
    let mut command = Command::new("unshare");
    command.args(["-Urm", "--propagation", "private", "sh", "-c", script]);
    let container = Helper::start(command.arg(&root), "ready").unwrap();
    let pid = format!("--pid={}", container.id());
    let mut words = vec!["configure", "--no-cgroups", &pid];
    words.extend(EVERYTHING);
    let log = scratch.join("log");
    let mut line = command_line(machine::driver(), &words);
    line.push(root.clone().into());
    Run::cli(line).env("NVC_DEBUG_FILE", &log).succeeds();
    assert_eq!(fallback(&fs::read_to_string(log).unwrap()), None);
    let lines = listed(&root);
    assert!(
        lines.iter().any(|line| line.contains("libcuda.so.1 ")),
        "{lines:#?}"
    );
    container.end().unwrap();
}
