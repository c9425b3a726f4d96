//! Tests generated hostile roots: a `configure` does exactly what it planned or nothing, and nothing outside the root.
//!
//! [`nvc_testkit::hostile`] generates the roots, with one to six traps. All links out of a root lead to a canary, a
//! tree laid out like a root, so that an escape finds the names it expects there. Afterwards the canary, the host's
//! mounts and the caller's namespaces are unchanged; after a success, the new mounts are those of a dry run, each of
//! the right file with the right attributes, and no file changed but mount points, the plan's links and ldconfig's
//! files ([`nvc_tests::arena`]). The tests with names of their own are trees that the long form found.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;

use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self, test};
use nvc_testkit::hostile::{self, Layout, Link, Mounted, Spot, Thing, roots};
use nvc_tests::arena::{Arena, Ending, Mode};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// Options: few, many, and some that use other paths.
const WORDS: &[&[&str]] = &[
    &["--utility", "--device=0"],
    &["--compute", "--utility", "--compat32", "--device=0"],
    &["--graphics", "--utility", "--device=all"],
];

fn main() -> ExitCode {
    // All kinds of files, and none behind an absolute link: a mount's source is compared with the planned path.
    harness::on_debian();
    let mut tests = vec![
        test("supervised", &[Root], || {
            trees(&Arena::new().unwrap(), Mode::Supervised, 1);
        }),
        test("standalone", &[Root], || {
            trees(&Arena::new().unwrap(), Mode::Standalone, 2);
        }),
        test("with_new_nodes", &[Root], || {
            trees(&Arena::loading().unwrap(), Mode::Supervised, 3);
        }),
    ];
    tests.extend(nvc_testkit::tests![&[Root];
        mount_points_that_are_ldconfigs_own_files,
        links_that_a_mount_would_hide,
        directories_that_a_mount_would_hide,
        a_mount_would_hide_the_way_to_another,
    ]);
    harness::main(tests)
}

/// A tree that the long form found: ldconfig replaces a mount point, in directories that only `configure` creates.
fn mount_points_that_are_ldconfigs_own_files() {
    let arena = Arena::new().unwrap();
    let at = |path, thing| Spot { path, thing };
    let own = || Thing::Link(Link::Relative("var/cache/ldconfig/aux-cache"));
    let traps = [
        vec![
            at("etc", Thing::Socket),
            at("proc/driver", Thing::Overlay),
            at("var/run/nvidia-persistenced/socket", own()),
            at("usr/local", Thing::Link(Link::Descriptor(8))),
            at("dev/nvidia-uvm", Thing::Device(true, 1, 5)),
        ],
        // A link without a target, until `configure` creates that.
        vec![
            at("var", Thing::Link(Link::Dangling)),
            at("dev/nvidiactl", own()),
        ],
    ];
    for spots in traps {
        let root = hostile::Root {
            layout: Layout::Bare,
            mounted: Mounted::Overlay,
            spots,
        };
        for mode in [Mode::Supervised, Mode::Standalone] {
            // Whether ldconfig writes its file before or after the mount depends on the machine.
            for _ in 0..harness::cases(20, 200) {
                arena.try_root(mode, &root, WORDS[2]).unwrap();
            }
        }
    }
}

const PROFILES: &str = "etc/nvidia/nvidia-application-profiles-rc.d";

/// Tries a root in both modes. The mount at `at` must be missing, with an error or a warning that gives the reason.
fn missing(arena: &Arena, at: &str, why: &str, spots: Vec<Spot>) {
    let root = hostile::Root {
        layout: Layout::Debian,
        mounted: Mounted::Bind,
        spots,
    };
    for mode in [Mode::Supervised, Mode::Standalone] {
        let ending = arena.try_root(mode, &root, WORDS[2]).unwrap();
        let is_best_effort = at == PROFILES;
        assert_eq!(
            ending == Ending::Done,
            is_best_effort,
            "{ending:?} {root:?}"
        );
        let path = arena.build(&root).unwrap();
        let outcome = arena.configure(mode, &path, WORDS[2]).unwrap();
        arena.clear().unwrap();
        let text = format!("mount operation failed: {}/{at}: {why}", path.display());
        assert!(outcome.stderr.contains(&text), "{}", outcome.stderr);
    }
}

const ITSELF: &str = "the image's links lead to it through the directory that it would hide";

/// Another one: the mount would cover the directory of the link that leads to it.
fn links_that_a_mount_would_hide() {
    let arena = Arena::new().unwrap();
    let link = |path, target| Spot {
        path,
        thing: Thing::Link(Link::Relative(target)),
    };
    for above in ["etc/nvidia", "etc"] {
        missing(&arena, PROFILES, ITSELF, vec![link(PROFILES, above)]);
    }
    let (proc, above) = ("proc/driver/nvidia", "proc/driver");
    missing(&arena, proc, ITSELF, vec![link(proc, above)]);
}

/// A link in any part of the path leads through the directory that the mount would cover.
fn directories_that_a_mount_would_hide() {
    let arena = Arena::new().unwrap();
    let proc = "proc/driver/nvidia";
    for (at, path) in [(PROFILES, "etc/nvidia"), (PROFILES, PROFILES), (proc, proc)] {
        let thing = Thing::Link(Link::Detour("var/cache"));
        missing(&arena, at, ITSELF, vec![Spot { path, thing }]);
    }
}

fn a_mount_would_hide_the_way_to_another() {
    let link = |path, target| Spot {
        path,
        thing: Thing::Link(Link::Absolute(target)),
    };
    let proc = "proc/driver/nvidia";
    let spots = vec![
        Spot {
            path: "opt",
            thing: Thing::Directory(0o755),
        },
        link("etc/nvidia/nvidia-application-profiles-rc.d/there", "opt"),
        link(proc, "etc/nvidia/nvidia-application-profiles-rc.d/there"),
    ];
    let why = "its mount point has been replaced";
    missing(&Arena::new().unwrap(), proc, why, spots);
}

/// Tests trees in one mode. Another seed generates other trees: `NVC_TEST_SEED=7`.
fn trees(arena: &Arena, mode: Mode, number: u64) {
    let count = harness::cases(250, 10_000);
    let seed = std::env::var("NVC_TEST_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(number);
    let endings: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let mut runner = TestRunner::new(Config {
        cases: u32::try_from(count).unwrap(),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    });
    let found = runner.run(&(roots(), select(WORDS)), |(root, words)| {
        let ending = arena.try_root(mode, &root, words);
        let ending = ending.map_err(TestCaseError::fail)?;
        let ending = match ending {
            Ending::Done => "done".to_owned(),
            Ending::Refused(why) => why,
        };
        let mut endings = endings.lock().unwrap();
        *endings.entry(ending).or_default() += 1;
        let tried: usize = endings.values().sum();
        if tried.is_multiple_of(1000) {
            println!("{mode:?}: {tried} trees");
        }
        Ok(())
    });
    if let Err(error) = found {
        panic!("with NVC_TEST_SEED={seed}: {error}");
    }
    let endings = endings.into_inner().unwrap();
    // If all trees are rejected, or none, the test proves little.
    let done = endings.get("done").copied().unwrap_or_default();
    println!("{mode:?}: {count} trees, seed {seed}, {done} done: {endings:#?}");
    // Among the objects are devices without a driver; none may be opened.
    let opened = |ending: &&String| ending.ends_with("no such device or address");
    assert_eq!(endings.keys().find(opened), None);
    assert!(done > count / 10 && done < count, "{endings:#?}");
}
