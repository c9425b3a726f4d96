//! Exchanges directories and files with links as fast as possible while `configure` runs: another
//! container does so on the shared volume, a process of this one in its root. Nothing is created on a volume, or outside
//! of the container.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::Layout;
use nvc_testkit::tree::Tree;
use nvc_testkit::{harness, mounts};

use super::{Kind, World, root};

/// Volumes, the volume in which names are exchanged (None for the root), and the name.
type Place = (
    &'static [(&'static str, Kind)],
    Option<&'static str>,
    &'static str,
);

const ETC: &[(&str, Kind)] = &[("etc", Kind::Copy), ("data", Kind::Empty)];
const USR: &[(&str, Kind)] = &[("usr", Kind::Copy), ("data", Kind::Empty)];
const DATA: &[(&str, Kind)] = &[("data", Kind::Empty)];

const PLACES: [Place; 7] = [
    (ETC, Some("etc"), "ld.so.cache"),
    (ETC, None, "usr/LIB"),
    (USR, Some("usr"), "LIB"),
    (DATA, None, "etc"),
    (DATA, None, "etc/ld.so.cache"),
    (DATA, None, "usr/LIB"),
    (DATA, None, "usr/bin"),
];

/// What is exchanged with the expected file or directory.
#[derive(Clone, Copy, Debug)]
enum Evil {
    /// A link to the other volume.
    Volume,
    /// A link to a directory of the host.
    Absolute,
    Climbing,
    /// A file instead of a directory, or a directory instead of a file.
    OtherKind,
}

const EVILS: [Evil; 4] = [
    Evil::Volume,
    Evil::Absolute,
    Evil::Climbing,
    Evil::OtherKind,
];

pub(super) fn races() {
    let count = harness::cases(28, 2_800);
    let canary = Scratch::new().unwrap();
    fs::write(canary.join("file"), "").unwrap();
    // It makes mounts of its own.
    machine::driver();
    let host = mounts::numbered(std::process::id()).unwrap();
    let mut endings = BTreeMap::<String, usize>::new();
    let mut exchanges = 0;
    for number in 0..count {
        let place = PLACES[number % PLACES.len()];
        // Each place with each object, and from the start with all of them.
        let evil = EVILS[(number / PLACES.len() + number) % EVILS.len()];
        let (ending, made) = race(place, evil, canary.path());
        exchanges += made;
        *endings.entry(ending).or_default() += 1;
    }
    assert_eq!(mounts::numbered(std::process::id()).unwrap(), host);
    println!("{count} runs, {exchanges} exchanges: {endings:#?}");
    assert!(exchanges > count * 100, "{exchanges} exchanges");
    assert!(endings.contains_key("done"), "{endings:#?}");
}

/// Runs one `configure` against one racer; returns how it ended, and the number of exchanges.
fn race((volumes, of, name): Place, evil: Evil, canary: &Path) -> (String, usize) {
    let what = format!("{of:?} {name} {evil:?}");
    let mut world = World::new(root(Layout::Debian).directory("data"), volumes);
    let top = match of {
        Some(of) => world.volume(of).to_owned(),
        None => world.container.root().to_owned(),
    };
    let library_directory = machine::driver().fill("LIB").replacen("usr/", "", 1);
    let name = name.replace("LIB", library_directory.trim_start_matches('/'));
    let at = top.join(name.trim_start_matches('/'));
    let beside = prepare(&at, evil, canary);
    // With what the racer has put there.
    world.look();
    let outside = Tree::of(canary).unwrap();
    let before = world.container.mounts().unwrap();
    let stop = AtomicBool::new(false);
    let (done, count) = thread::scope(|scope| {
        let racer = scope.spawn(|| exchange(&at, &beside, &stop));
        let done = world.configure("auto").outcome().unwrap();
        stop.store(true, Ordering::Relaxed);
        (done, racer.join().unwrap())
    });
    world.volumes_are_unchanged();
    let after = Tree::of(canary).unwrap();
    assert_eq!(after.changes_since(&outside), [""; 0], "{what}");
    let ending = match done.status {
        Some(0) => "done".into(),
        Some(1) => {
            assert_eq!(
                world.container.mounts().unwrap(),
                before,
                "{what}: {done:#?}"
            );
            let text = done.message();
            text.rsplit(": ").next().unwrap_or_default().to_owned()
        }
        _ => panic!("{what}: {done:#?}"),
    };
    (ending, count)
}

/// Creates the expected object, if nothing is there, and the evil one beside it.
fn prepare(at: &Path, evil: Evil, canary: &Path) -> PathBuf {
    if fs::symlink_metadata(at).is_err() {
        fs::create_dir_all(at).unwrap();
    }
    let beside = at.with_extension("evil");
    match evil {
        Evil::Volume => symlink("/data", &beside).unwrap(),
        Evil::Absolute => symlink(canary, &beside).unwrap(),
        Evil::Climbing => {
            let below = canary.strip_prefix("/").unwrap();
            symlink(Path::new(&"../".repeat(30)).join(below), &beside).unwrap();
        }
        Evil::OtherKind if at.is_dir() => fs::write(&beside, "").unwrap(),
        Evil::OtherKind => fs::create_dir(&beside).unwrap(),
    }
    beside
}

/// Exchanges until it is stopped, and then once more if the names are not as before; returns the number of exchanges.
fn exchange(at: &Path, beside: &Path, stop: &AtomicBool) -> usize {
    let once = || renameat2(AT_FDCWD, at, AT_FDCWD, beside, RenameFlags::RENAME_EXCHANGE).is_ok();
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        if once() {
            count += 1;
        } else {
            thread::yield_now();
        }
    }
    if count % 2 == 1 {
        assert!(once());
    }
    count
}
