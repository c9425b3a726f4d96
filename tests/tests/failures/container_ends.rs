//! Tests containers that end while they are configured, and reused pids.

use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::driver;
use nvc_testkit::files;
use nvc_testkit::harness::Need::{Command as Program, Root};
use nvc_testkit::harness::{Test, cases};
use nvc_testkit::helper::Helper;
use nvc_testkit::machine::Scratch;
use nvc_testkit::mounts::{self, Mount};
use nvc_testkit::profile::Profile;
use nvc_testkit::tree::Tree;
use nvc_tests::{configure, debian_root, start};

use super::paused;

const ARGUMENTS: &[&str] = &["--utility", "--compute", "--graphics", "--device=0"];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = nvc_testkit::tests![&[Root];
        it_ends_while_nvml_is_asked,
        it_ends_at_any_time,
    ];
    tests.extend(nvc_testkit::tests![&[Root, Program("cc")]; its_number_is_used_again]);
    tests
}

fn container() -> Container {
    start(Builder::new(debian_root().no_programs()))
}

fn end(container: &Container) {
    let pid = Pid::from_raw(container.pid().cast_signed());
    kill(pid, Signal::SIGKILL).unwrap();
}

/// Returns the host's mounts below a container's root.
fn on_host(container: &Container) -> Vec<Mount> {
    let table = mounts::of("self").unwrap();
    mounts::below(&table, container.root()).cloned().collect()
}

/// It is not reaped and becomes a zombie.
fn it_ends_while_nvml_is_asked() {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default().build(scratch.path()).unwrap();
    let container = container();
    let (files, host) = (Tree::of(container.root()).unwrap(), on_host(&container));
    let paused = paused::configure(&driver, &container, ARGUMENTS);
    end(&container);
    let outcome = paused.resume(&Profile::default());
    let text = format!(
        "nvidia-container-cli: mount error: stat failed: /proc/{}: no such process",
        container.pid()
    );
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert_eq!(outcome.message(), text);
    assert!(outcome.stderr.contains("has ended"), "{outcome:#?}");
    let changes = Tree::of(container.root()).unwrap().changes_since(&files);
    assert_eq!(changes, [""; 0]);
    assert_eq!(on_host(&container), host);
}

/// All or nothing, whenever it ends; the host's mounts are unchanged.
fn it_ends_at_any_time() {
    let number = cases(16, 400);
    let mut failed = 0;
    for case in 0..number {
        let container = container();
        let (files, host) = (Tree::of(container.root()).unwrap(), on_host(&container));
        let run = configure(&container, ARGUMENTS);
        let outcome = thread::scope(|scope| {
            let run = scope.spawn(|| run.outcome().unwrap());
            // Spread over the run time of a debug build.
            thread::sleep(Duration::from_micros(100_000 * case as u64 / number as u64));
            end(&container);
            run.join().unwrap()
        });
        assert_eq!(outcome.orphans, [""; 0]);
        assert_eq!(on_host(&container), host);
        match outcome.status {
            Some(0) => {}
            Some(1) => {
                failed += 1;
                assert!(
                    outcome.message().starts_with("nvidia-container-cli: "),
                    "{outcome:#?}"
                );
                let changes = Tree::of(container.root()).unwrap().changes_since(&files);
                assert!(changes.is_empty(), "{changes:#?} {outcome:#?}");
            }
            _ => panic!("{outcome:#?}"),
        }
    }
    assert!(failed > 0, "it was always too late");
}

/// Starts a process of the host with the container's former pid.
fn successor(pid: u32, scratch: &Scratch) -> Helper {
    let program = compiled(Source::WithPid, &[]).unwrap();
    let path = scratch.join("with-pid");
    files::file(&path, &program[..], 0o755).unwrap();
    let script = "echo ready; exec sleep 3600";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.arg(path).arg(pid.to_string());
    Helper::start(command.args(["sh", "-c", script]), "ready").unwrap()
}

/// The new process is in its own namespace, which contains the same directory: nothing is mounted there.
fn its_number_is_used_again() {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default()
        .build(scratch.join("driver"))
        .unwrap();
    let mut container = container();
    let (pid, files) = (container.pid(), Tree::of(container.root()).unwrap());
    let paused = paused::configure(&driver, &container, ARGUMENTS);
    container.end();
    let successor = successor(pid, &scratch);
    let before = mounts::of(pid).unwrap();
    let outcome = paused.resume(&Profile::default());
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert!(outcome.stderr.contains("has ended"), "{outcome:#?}");
    let (new, gone) = mounts::delta(&before, &mounts::of(pid).unwrap());
    assert!(new.is_empty() && gone.is_empty(), "{new:#?} {gone:#?}");
    let changes = Tree::of(container.root()).unwrap().changes_since(&files);
    assert_eq!(changes, [""; 0]);
    drop(successor);
}
