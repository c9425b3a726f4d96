//! Injects a fault into each system call of a hook in turn: everything is done, or nothing remains.

use std::collections::BTreeMap;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::faults::{self, Effect, Fault, Report};
use nvc_testkit::harness;
use nvc_testkit::hostile::{Layout, Mounted, Root};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::mounts;
use nvc_testkit::syscalls;
use nvc_testkit::tree::Tree;
use nvc_tests::arena::Arena;

use super::hooks;
use super::hostile::line;

/// Runs the hook; returns its result and its calls.
fn tried(arena: &Arena, words: &[String], fault: Option<&Fault>) -> (Outcome, Report) {
    let root = Root {
        layout: Layout::Debian,
        mounted: Mounted::Bind,
        spots: Vec::new(),
    };
    let path = arena.build(&root).unwrap();
    let look = || {
        let files = arena.inside().run(|| Tree::of(&path)).unwrap().unwrap();
        (files, mounts::numbered(arena.inside().pid()).unwrap())
    };
    let (files, mounted) = look();
    let (outcome, report) = run(arena, &path, words, fault);
    let (files_now, mounted_now) = look();
    if outcome.status != Some(0) {
        let changes = files_now.changes_since(&files);
        assert!(changes.is_empty(), "{fault:?}: {changes:#?} {outcome:#?}");
        assert_eq!(mounted_now, mounted, "{fault:?}: {outcome:#?}");
    }
    arena.clear().unwrap();
    arena.host_is_unchanged().unwrap();
    (outcome, report)
}

fn run(arena: &Arena, root: &Path, words: &[String], fault: Option<&Fault>) -> (Outcome, Report) {
    let scratch = Scratch::new().unwrap();
    let line = line(&scratch, root, words);
    let report = scratch.join("report");
    let command = faults::command(fault, &report).unwrap();
    let outcome = arena.inside().run(|| {
        let run = Run::other(command.get_program()).args(command.get_args());
        run.args(&line).outcome().unwrap()
    });
    let outcome = outcome.unwrap();
    let report =
        Report::read(&report).unwrap_or_else(|error| panic!("{fault:?}: {error}: {outcome:?}"));
    (outcome, report)
}

pub(super) fn failing_calls() {
    let mut endings = BTreeMap::<Option<i32>, usize>::new();
    for words in hooks() {
        // A plan has what the other hooks do.
        let cases = if words[0] == "apply" { 60 } else { 20 };
        each_call_fails(&words, cases, &mut endings);
    }
    // Some failures do not matter, and some do.
    assert!(
        endings.contains_key(&Some(0)) && endings.contains_key(&Some(1)),
        "{endings:?}"
    );
}

fn each_call_fails(words: &[String], cases: usize, endings: &mut BTreeMap<Option<i32>, usize>) {
    machine::driver();
    let arena = Arena::new().unwrap();
    let (outcome, report) = tried(&arena, words, None);
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    // pathrs, which panics if fstat(2) fails on /proc, would look at the name of each missing file's directory.
    let of_pathrs = syscalls::number("faccessat2").unwrap();
    assert!(
        !report
            .calls
            .values()
            .flatten()
            .any(|call| *call == of_pathrs)
    );
    // A failure of these makes the C library abort any program, without an undo.
    let memory = ["mmap", "munmap", "madvise", "mprotect", "mremap"].map(syscalls::number);
    let of_task = |(task, calls): (&String, &Vec<i64>)| {
        let places = (0..).zip(calls.clone());
        let places = places.filter(|(_, number)| !memory.contains(&Some(*number)));
        let places: Vec<_> = places.map(|(place, _)| (task.clone(), place)).collect();
        places
    };
    let all: Vec<(String, usize)> = report.calls.iter().flat_map(of_task).collect();
    // One of each so many, at changing places: the program has loops of as many calls.
    let count = harness::cases(cases, all.len());
    let step = (all.len() / count).max(1);
    let picked = (0..count).filter_map(|n| all.get(n * step + n * 7 % step));
    for (task, call) in picked {
        let fault = Fault {
            task: task.clone(),
            of: None,
            call: *call,
            effect: Effect::Fails(Errno::EIO),
        };
        let (outcome, _) = tried(&arena, words, Some(&fault));
        // 127 is the loader's status before `main`; 101 would be a panic. `tried` checks these runs too.
        assert_ne!(outcome.status, Some(101), "{fault:?}: {outcome:#?}");
        *endings.entry(outcome.status).or_default() += 1;
    }
    println!("{} calls, one of {step} failed: {endings:?}", all.len());
}

/// The container must not start with a writable root, if its specification makes it read-only.
pub(super) fn a_root_that_stays_writable() {
    machine::driver();
    let arena = Arena::new().unwrap();
    let scratch = Scratch::new().unwrap();
    let link = ["create-symlinks", "--link", "a::/etc/link"].map(String::from);
    // The hook's first mount_setattr(2) makes the root writable, the second one read-only.
    for (call, status, complaint) in [
        (2, 0, ""),
        (1, 1, "making the container's root read-only again failed: "),
    ] {
        let root = Root {
            layout: Layout::Debian,
            mounted: Mounted::Bind,
            spots: Vec::new(),
        };
        let root = arena.build(&root).unwrap();
        let remount = || {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            mount(None::<&str>, &root, None::<&str>, flags, None::<&str>)
        };
        arena.inside().run(remount).unwrap().unwrap();
        let before = mounts::numbered(arena.inside().pid()).unwrap();
        let line = line(&scratch, &root, &link);
        let report = scratch.join("report");
        let command =
            faults::failing(("mount_setattr", call), Errno::EBUSY as i32, &report).unwrap();
        let run = || {
            let run = Run::other(command.get_program()).args(command.get_args());
            run.args(&line).outcome().unwrap()
        };
        let outcome = arena.inside().run(run).unwrap();
        assert_eq!(outcome.status, Some(status), "{outcome:#?}");
        assert!(outcome.stderr.contains(complaint), "{outcome:#?}");
        let after = mounts::numbered(arena.inside().pid()).unwrap();
        assert_eq!(after == before, status == 0, "{outcome:#?}");
        arena.clear().unwrap();
    }
}
