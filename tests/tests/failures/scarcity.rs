//! Tests machines that run out of space, inodes, descriptors or memory. Everything or nothing is done.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::harness::Need::{Command as Program, Root};
use nvc_testkit::harness::{Test, cases};
use nvc_testkit::machine::Scratch;
use nvc_testkit::{machine, rootfs, userland};
use nvc_tests::{State, capi, command_line, configure, debian_root, host_ldconfig, start};

const ARGUMENTS: &[&str] = &["--utility", "--compute", "--graphics", "--device=all"];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = nvc_testkit::tests![&[Root];
        no_inode_is_left,
        no_space_for_the_cache,
        one_directory_is_read_only,
    ];
    tests.extend(nvc_testkit::tests![&[Root, Program("prlimit")];
        no_descriptor_is_left,
        files_are_limited,
        no_memory_is_left,
    ]);
    tests.extend(nvc_testkit::tests![&[Root, Program("gcc")]; no_descriptor_is_left_in_c]);
    tests
}

fn container() -> Container {
    start(Builder::new(root()))
}

fn root() -> rootfs::Builder {
    let root = debian_root().no_programs();
    root.directory("/usr/lib/x86_64-linux-gnu")
}

/// Mounts a small filesystem in a container, over an empty directory.
fn mount_small(container: &Container, directory: &str, options: &str) {
    let status = container
        .enter("mount")
        .args(["-t", "tmpfs", "-o", options, "small"])
        .arg(container.point(directory))
        .status();
    assert!(status.unwrap().success());
}

/// Adds one inode each time, until they suffice, so that each created file fails once. On a volume, mount points are
/// created for its owner.
fn no_inode_is_left() {
    let directory = machine::driver().fill("/LIB");
    let mut inodes = 1;
    loop {
        let container = start(Builder::new(root()).owner(1000));
        let options = format!("nr_inodes={inodes},uid=1000,gid=1000,mode=755");
        mount_small(&container, &directory, &options);
        let before = State::of(&container);
        let outcome = configure(&container, ARGUMENTS).outcome().unwrap();
        if outcome.status == Some(0) {
            break;
        }
        // Without its link by SONAME a library is of no use.
        let text = outcome.message();
        let is_link = text.contains("the loader would not find the library by its name");
        assert_failed(
            &outcome,
            if is_link {
                "by its name"
            } else {
                "no space left on device"
            },
        );
        before.assert_unchanged(&container);
        inodes += cases(5, 1);
        assert!(inodes < 200);
    }
    assert!(inodes > 20, "{inodes}");
}

/// ldconfig fails to create its file, or to fill it. The other files exist from an earlier container.
fn no_space_for_the_cache() {
    for (options, filler) in [
        ("nr_inodes=4096", ": > filler$i"),
        ("size=8m", "head -c 4096 /dev/zero > filler$i"),
    ] {
        let small = Small::mount(options);
        let root = root().build(small.path().join("root")).unwrap();
        configure(&start(Builder::on(&root)), ARGUMENTS).succeeds();
        let container = start(Builder::on(&root));
        let script = format!(
            "cd \"$1/etc\" || exit 1
             i=0; while ({filler}) 2>/dev/null; do i=$((i+1)); done; true"
        );
        let mut shell = Command::new("sh");
        let status = shell.args(["-c", &script, "sh"]).arg(&root).status();
        assert!(status.unwrap().success());
        let before = State::of(&container);
        let words = &["--utility", "--compute", "--device=0"];
        let outcome = configure(&container, words).outcome().unwrap();
        assert_failed(&outcome, "ldcache error: ");
        let hint = "the file system of the container's root is full";
        assert!(outcome.stderr.contains(hint), "{outcome:#?}");
        before.assert_unchanged(&container);
    }
}

/// A small filesystem of the host, for a root.
struct Small(Scratch);

impl Small {
    fn mount(options: &str) -> Self {
        let small = Self(Scratch::new().unwrap());
        std::fs::create_dir(small.path()).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "small"]);
        assert!(mount.arg(small.path()).status().unwrap().success());
        small
    }

    fn path(&self) -> PathBuf {
        self.0.join("small")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily, because containers of other tests started as copies of this namespace.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn one_directory_is_read_only() {
    for place in ["/LIB", "/etc", "/usr/bin", "/usr/lib/firmware", "/run"] {
        let directory = machine::driver().fill(place);
        let container = container();
        let path = container.point(&directory);
        let script =
            "mkdir -p \"$1\" && mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"";
        let mut shell = container.enter("sh");
        let status = shell.args(["-c", script, "sh"]).arg(path).status();
        assert!(status.unwrap().success());
        let outcome = configure(&container, ARGUMENTS).outcome().unwrap();
        // Libraries are required (tests/volume_policy); the rest is left out.
        if place == "/LIB" {
            assert_failed(&outcome, "is a volume, which may not be changed");
            continue;
        }
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        let warning = "nvidia-container-cli: warning: skipped (optional): ";
        let mut lines = outcome.stderr.lines();
        assert!(lines.all(|line| line.starts_with(warning)), "{outcome:#?}");
    }
}

/// The signal of this limit would end the program in the middle. The limit cuts its error off, too: the kit has it in a
/// file.
fn files_are_limited() {
    for limit in [0, 100] {
        let container = container();
        let before = State::of(&container);
        let outcome = limited("fsize", limit, &container);
        let ended = (outcome.status, outcome.orphans.len());
        assert_eq!(ended, (Some(1), 0), "{outcome:#?}");
        before.assert_unchanged(&container);
    }
}

fn assert_failed(outcome: &Outcome, text: &str) {
    let line = outcome.message();
    assert!(
        outcome.status == Some(1)
            && line.starts_with("nvidia-container-cli: ")
            && line.contains(text)
            && outcome.orphans.is_empty(),
        "{text}: {outcome:#?}"
    );
}

fn limited(option: &str, limit: usize, container: &Container) -> Outcome {
    let pid = format!("--pid={}", container.pid());
    let ldconfig = host_ldconfig();
    let words = [&["configure", "--no-cgroups", &pid, &ldconfig], ARGUMENTS].concat();
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    let mut prlimit = Command::new("prlimit");
    prlimit.arg(format!("--{option}={limit}:{limit}")).arg("--");
    Run::within(prlimit, line).outcome().unwrap()
}

/// Checks that it succeeded without omissions.
fn assert_complete(container: &Container, before: &State) {
    let plenty = self::container();
    let without_limit = State::of(&plenty);
    configure(&plenty, ARGUMENTS).succeeds();
    assert_eq!(
        before.new_mounts(container),
        without_limit.new_mounts(&plenty)
    );
}

fn no_descriptor_is_left() {
    let container = container();
    let before = State::of(&container);
    let mut failures = 0;
    for limit in (4..1000).step_by(cases(7, 1)) {
        let outcome = limited("nofile", limit, &container);
        if outcome.status == Some(0) {
            break;
        }
        assert_failed(&outcome, "");
        before.assert_unchanged(&container);
        failures += 1;
    }
    assert!(failures > 10, "{failures}");
    assert_complete(&container, &before);
}

/// The process may be killed: by the kernel during exec, by the loader, or by an allocation that cannot fail. Which of
/// these happens at which limit depends on the C library. A later run succeeds.
fn no_memory_is_left() {
    let mut container = container();
    let mut before = State::of(&container);
    let (mut failures, mut ends) = (0, 0);
    for limit in (6 << 20..1 << 30).step_by(cases(256 << 10, 32 << 10)) {
        let outcome = limited("as", limit, &container);
        assert_eq!(outcome.orphans, [""; 0], "{limit}");
        match outcome.status {
            Some(0) => break,
            // The loader's, before the program starts.
            Some(127) => before.assert_unchanged(&container),
            Some(signal) if signal < 0 => {
                ends += 1;
                configure(&container, ARGUMENTS).succeeds();
                container = self::container();
                before = State::of(&container);
            }
            _ => {
                failures += 1;
                assert_failed(&outcome, "");
                before.assert_unchanged(&container);
            }
        }
    }
    // Coarse steps can miss all limits that suffice for a message, but not for the work.
    assert!(failures + ends > 0);
    println!("{failures} failures, {ends} ends by a signal");
    assert_complete(&container, &before);
}

/// The C library does not raise the limit, which belongs to its caller.
fn no_descriptor_is_left_in_c() {
    let container = container();
    let before = State::of(&container);
    let program = capi::Program::compile("gcc", "tests/c/scarce.c", capi::Check::Plain);
    let ldconfig = format!("@{}", userland::host_ldconfig().display());
    let words: [OsString; 4] = [
        machine::driver().root().into(),
        container.pid().to_string().into(),
        container.root().into(),
        ldconfig.into(),
    ];
    program.succeeds(words);
    let new = before.new_mounts(&container);
    assert!(
        new.iter()
            .any(|line| line.starts_with("usr/bin/nvidia-smi ")),
        "{new:#?}"
    );
}
