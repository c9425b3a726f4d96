//! Tests hooks on hostile roots, and on roots that other processes change concurrently: no hook changes anything
//! outside, and a plan that fails leaves nothing. The roots are those of hostile_trees.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nvc_testkit::cli::{self, Outcome, Run};
use nvc_testkit::harness;
use nvc_testkit::hostile::{Layout, Mounted, Root, Spot, Thing, roots};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::mounts;
use nvc_testkit::tree::Tree;
use nvc_tests::arena::Arena;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::hooks;

/// Returns the command line of a hook on a root, with the state in a file.
pub(super) fn line(scratch: &Scratch, root: &Path, words: &[String]) -> Vec<String> {
    let state = scratch.join("state.json");
    fs::write(&state, format!(r#"{{"root": "{}"}}"#, root.display())).unwrap();
    let mut line = vec![
        cli::beside("nvidia-cdi-hook")
            .unwrap()
            .display()
            .to_string(),
    ];
    line.extend_from_slice(words);
    line.push(format!("--container-spec={}", state.display()));
    line
}

fn run(scratch: &Scratch, root: &Path, words: &[String]) -> Outcome {
    let line = line(scratch, root, words);
    Run::other(&line[0]).args(&line[1..]).outcome().unwrap()
}

/// Classifies how a hook ended; fails for a crash or a hang, or if it opened one of the root's devices.
fn ending(outcome: &Outcome, has_devices: bool) -> Result<String, String> {
    let text = outcome.message();
    // Opening a socket fails in the same way.
    let opened = has_devices && text.contains("No such device or address");
    match outcome.status {
        Some(0) if !opened => Ok("done".into()),
        // An error about a device without a driver means that the device was opened.
        Some(1) if !opened && outcome.orphans.is_empty() => {
            let cause = text.rsplit(": ").next().unwrap_or_default();
            Ok(cause.trim_end_matches('"').to_owned())
        }
        _ => Err(format!("no orderly end: {outcome:#?}")),
    }
}

pub(super) fn trees() {
    let count = harness::cases(200, 10_000);
    let seed = std::env::var("NVC_TEST_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(3);
    machine::driver();
    let arena = Arena::new().unwrap();
    let scratch = Scratch::new().unwrap();
    let endings: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let mut runner = TestRunner::new(Config {
        cases: u32::try_from(count).unwrap(),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let found = runner.run(&(roots(), select(hooks())), |(root, words)| {
        let ending = try_root(&arena, &scratch, &root, &words).map_err(TestCaseError::fail)?;
        *endings.lock().unwrap().entry(ending).or_default() += 1;
        Ok(())
    });
    if let Err(error) = found {
        panic!("with NVC_TEST_SEED={seed}: {error}");
    }
    let endings = endings.into_inner().unwrap();
    println!("{count} trees, seed {seed}: {endings:#?}");
    let done = endings.get("done").copied().unwrap_or_default();
    assert!(done > count / 10 && done < count, "{endings:#?}");
}

fn try_root(
    arena: &Arena,
    scratch: &Scratch,
    root: &Root,
    words: &[String],
) -> Result<String, String> {
    let path = arena.build(root)?;
    let is_device = |spot: &Spot| matches!(spot.thing, Thing::Device(..));
    let has_devices = root.spots.iter().any(is_device);
    let tried = try_built(arena, scratch, &path, words, has_devices);
    let cleared = arena.clear();
    let ending = tried?;
    cleared?;
    arena.host_is_unchanged()?;
    Ok(ending)
}

fn try_built(
    arena: &Arena,
    scratch: &Scratch,
    path: &Path,
    words: &[String],
    has_devices: bool,
) -> Result<String, String> {
    let told = |error: std::io::Error| error.to_string();
    let look = || {
        let files = arena.inside().run(|| Tree::of(path)).map_err(told)?;
        let mounts = mounts::numbered(arena.inside().pid()).map_err(told)?;
        Ok::<_, String>((files.map_err(told)?, mounts))
    };
    let (files, mounted) = look()?;
    let outcome = arena
        .inside()
        .run(|| run(scratch, path, words))
        .map_err(told)?;
    let ending = ending(&outcome, has_devices)?;
    let (now, mounted_now) = look()?;
    let is_new = |mount: &&(u64, mounts::Mount)| !mounted.contains(mount);
    if let Some((_, mount)) = mounted_now
        .iter()
        .filter(is_new)
        .find(|(_, m)| !m.point.starts_with(path))
    {
        return Err(format!("outside the root: {mount}"));
    }
    // Every hook is all or nothing.
    if ending != "done" {
        let changes = now.changes_since(&files);
        if !changes.is_empty() || mounted != mounted_now {
            return Err(format!(
                "failed, but changed {changes:#?}: {}",
                outcome.stderr
            ));
        }
    }
    Ok(ending)
}

/// Directories in the paths that hooks write to, which are exchanged with escaping links.
const RACED: [&str; 6] = [
    "usr",
    "usr/lib",
    "LIB",
    "etc",
    "etc/nvidia",
    "usr/local/cuda/compat",
];

pub(super) fn races() {
    let count = harness::cases(60, 3_000);
    machine::driver();
    let arena = Arena::new().unwrap();
    let scratch = Scratch::new().unwrap();
    let hooks = hooks();
    let mut endings = BTreeMap::<String, usize>::new();
    for number in 0..count {
        let words = &hooks[number % hooks.len()];
        let path = machine::driver().fill(RACED[number / hooks.len() % RACED.len()]);
        let raced = race(&arena, &scratch, words, Path::new(&path));
        let ending = raced.unwrap_or_else(|problem| panic!("{path}, {words:?}: {problem}"));
        *endings.entry(ending).or_default() += 1;
    }
    println!("{count} runs: {endings:#?}");
    assert!(endings.contains_key("done"), "{endings:#?}");
}

fn race(arena: &Arena, scratch: &Scratch, words: &[String], path: &Path) -> Result<String, String> {
    let root = arena.build(&Root {
        layout: Layout::Debian,
        mounted: Mounted::Bind,
        spots: Vec::new(),
    })?;
    let told = |error: std::io::Error| error.to_string();
    let (place, evil) = (root.join(path), root.join(path).with_extension("evil"));
    let canary = arena.canary().join(path);
    let prepared = arena.inside().run(|| {
        fs::create_dir_all(&place)?;
        symlink(&canary, &evil)
    });
    prepared.and_then(|prepared| prepared).map_err(told)?;
    let stop = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            arena
                .inside()
                .run(|| exchange(&place, &evil, &stop))
                .unwrap();
        });
        let outcome = arena.inside().run(|| run(scratch, &root, words));
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    let ending = ending(&outcome.map_err(told)?, true);
    arena.clear()?;
    arena.host_is_unchanged()?;
    ending
}

pub(super) fn exchange(one: &PathBuf, other: &PathBuf, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // Fails while a filesystem is mounted there.
        let _ = renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE);
    }
}
