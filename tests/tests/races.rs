//! Tests containers that exchange directories and files with escaping links as fast as they can, while `configure`
//! runs: nothing outside the root is changed, mounted or read.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, renameat2};
use nix::sys::stat::{Mode as Bits, SFlag, makedev, mknod};
use nvc_testkit::harness::Need::Root as NeedRoot;
use nvc_testkit::harness::{self, test};
use nvc_testkit::hostile::{Layout, Mounted, PATHS, Root, is_file};
use nvc_testkit::machine;
use nvc_testkit::mounts::{self, Mount};
use nvc_tests::arena::{Arena, Ending, Mode, ending};

const WORDS: &[&str] = &["--compute", "--utility", "--compat32", "--device=0"];

/// The error of opening a device without a driver.
const OPENED: &str = "no such device or address";

/// The object that is exchanged with the expected directory or file.
#[derive(Clone, Copy, Debug)]
enum Evil {
    /// A link to the same path in the canary.
    Absolute,
    Climbing,
    Magic,
    /// A link to another path in the root.
    Inside,
    /// A device without a driver: opening it fails with a distinct error.
    Device,
    /// A file instead of a directory, or a directory instead of a file.
    OtherKind,
}

const EVILS: [Evil; 6] = [
    Evil::Absolute,
    Evil::Climbing,
    Evil::Magic,
    Evil::Inside,
    Evil::Device,
    Evil::OtherKind,
];

fn main() -> ExitCode {
    harness::main(vec![
        test("supervised", &[NeedRoot], || races(Mode::Supervised)),
        test("standalone", &[NeedRoot], || races(Mode::Standalone)),
        test(
            "what_an_earlier_run_left",
            &[NeedRoot],
            what_an_earlier_run_left,
        ),
    ])
}

fn races(mode: Mode) {
    let count = harness::cases(100, 5_000);
    let arena = Arena::new().unwrap();
    let exchanges = AtomicU64::new(0);
    let mut endings = BTreeMap::<String, usize>::new();
    // Runtimes mount /proc and /dev; mount points cannot be renamed.
    let fixed = ["proc", "proc/driver", "proc/self", "dev", "sys"];
    let paths: Vec<_> = PATHS.iter().filter(|path| !fixed.contains(path)).collect();
    for number in 0..count {
        // Each path with each object, and from the start with all of them.
        let (round, place) = (number / paths.len(), number % paths.len());
        let path = machine::driver().fill(paths[place]);
        let evil = EVILS[(round + place) % EVILS.len()];
        let raced = race(&arena, mode, Path::new(&path), evil, &exchanges, &[]);
        let ending = raced.unwrap_or_else(|problem| panic!("{path} and {evil:?}: {problem}"));
        assert!(!ending.ends_with(OPENED), "{path}, a device, was opened");
        *endings.entry(ending).or_default() += 1;
        if (number + 1).is_multiple_of(1000) {
            println!("{mode:?}: {} runs", number + 1);
        }
    }
    let exchanges = exchanges.into_inner();
    println!("{mode:?}: {count} runs, {exchanges} exchanges: {endings:#?}");
    assert!(exchanges > count as u64 * 100, "{exchanges} exchanges");
    assert!(endings.contains_key("done"), "{endings:#?}");
}

/// A second `configure` reads files in the first one's tmpfs, and opens no device that replaces them.
fn what_an_earlier_run_left() {
    let count = harness::cases(40, 2_000);
    let arena = Arena::new().unwrap();
    let exchanges = AtomicU64::new(0);
    let mut endings = BTreeMap::<String, usize>::new();
    let files = [
        "proc/driver/nvidia/params",
        "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf",
    ];
    for number in 0..count {
        let (path, evil) = (
            Path::new(files[number % 2]),
            [Evil::Device, Evil::Climbing][number / 2 % 2],
        );
        let raced = race(
            &arena,
            Mode::Supervised,
            path,
            evil,
            &exchanges,
            &["--graphics"],
        );
        let ending = raced.unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        // A device cannot be opened there, and a link to the canary is dangling in the tmpfs.
        assert!(
            !ending.ends_with("permission denied"),
            "{evil:?} was opened: {ending}"
        );
        *endings.entry(ending).or_default() += 1;
    }
    println!(
        "a second configure: {count} runs, {} exchanges: {endings:#?}",
        exchanges.into_inner()
    );
}

/// Runs one `configure` against one racer; with arguments for an earlier one, two.
fn race(
    arena: &Arena,
    mode: Mode,
    path: &Path,
    evil: Evil,
    exchanges: &AtomicU64,
    earlier: &[&str],
) -> Result<String, String> {
    let root = arena.build(&Root {
        layout: Layout::Debian,
        mounted: Mounted::Bind,
        spots: Vec::new(),
    })?;
    let told = |error: std::io::Error| error.to_string();
    let words = [WORDS, earlier].concat();
    if !earlier.is_empty() {
        let outcome = arena.configure(mode, &root, &words).map_err(told)?;
        if ending(&outcome)? != Ending::Done {
            return Err(format!("the first: {}", outcome.stderr));
        }
    }
    let before = mounts::numbered(arena.inside().pid()).map_err(told)?;
    let prepared = arena.inside().run(|| prepare(arena, &root, path, evil));
    let parent = prepared.and_then(|prepared| prepared).map_err(told)?;
    let stop = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let racer = scope.spawn(|| arena.inside().run(|| exchange(&parent, path, &stop)));
        let outcome = arena.configure(mode, &root, &words);
        stop.store(true, Ordering::Relaxed);
        let raced = racer.join().unwrap().unwrap();
        exchanges.fetch_add(raced, Ordering::Relaxed);
        outcome
    });
    let outcome = outcome.map_err(told)?;
    let ending = ending(&outcome)?;
    let after = mounts::numbered(arena.inside().pid()).map_err(told)?;
    if before.iter().any(|mount| !after.contains(mount)) {
        return Err("a mount of the container is gone or changed".into());
    }
    let new = after.iter().filter(|mount| !before.contains(mount));
    for (_, mount) in new {
        if ending != Ending::Done {
            return Err(format!("refused, but mounted: {mount}: {}", outcome.stderr));
        }
        is_inside(arena, &root, mount)?;
    }
    let read = arena.inside().run(|| caches(&root));
    for (cache, content) in read.and_then(|read| read).map_err(told)? {
        let has = |text: &[u8]| content.windows(text.len()).any(|part| part == text);
        if has(b"libcanary") || has(b"998.1") {
            return Err(format!("{} lists the host's libraries", cache.display()));
        }
    }
    arena.clear()?;
    arena.host_is_unchanged()?;
    Ok(match ending {
        Ending::Done => "done".into(),
        Ending::Refused(why) => why,
    })
}

/// Fails if a mount is outside the root, or shows a file of the host other than the driver's.
fn is_inside(arena: &Arena, root: &Path, mount: &Mount) -> Result<(), String> {
    if !mount.point.starts_with(root) {
        return Err(format!("outside the root: {mount}"));
    }
    let driver = machine::driver().root();
    let driver = Path::new("/").join(driver.strip_prefix(machine::scratch_base()).unwrap());
    // The driver's, the image's, or a new file: the canary is on the same filesystem as the driver's files.
    if mount.device == arena.device() && !mount.root.starts_with(&driver) {
        return Err(format!("of the host: {mount}"));
    }
    Ok(())
}

/// Creates the expected object, if nothing is there, and the evil one beside it; returns the directory.
fn prepare(arena: &Arena, root: &Path, path: &Path, evil: Evil) -> std::io::Result<OwnedFd> {
    let root = fs::File::open(root)?;
    let parent = directory(&OwnedFd::from(root), path.parent().unwrap())?;
    let name = path.file_name().unwrap();
    let here = |name: &std::ffi::OsStr| {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/thread-self/fd/{}", parent.as_raw_fd())).join(name)
    };
    let is_file = is_file(path);
    if fs::symlink_metadata(here(name)).is_err() {
        if is_file {
            fs::write(here(name), "")?;
        } else {
            fs::create_dir(here(name))?;
        }
    }
    let at = here(evil_name(path).as_ref());
    let canary = arena.canary().join(path);
    let below = canary.strip_prefix("/").unwrap();
    match evil {
        Evil::Absolute => symlink(&canary, at),
        Evil::Climbing => symlink(Path::new(&"../".repeat(30)).join(below), at),
        Evil::Magic => symlink(Path::new("/proc/self/root").join(below), at),
        Evil::Inside => symlink("/tmp", at),
        Evil::Device => {
            let mode = Bits::S_IRUSR | Bits::S_IWUSR;
            Ok(mknod(&at, SFlag::S_IFCHR, mode, makedev(4000, 0))?)
        }
        Evil::OtherKind if is_file => fs::create_dir(at),
        Evil::OtherKind => fs::write(at, ""),
    }?;
    Ok(parent)
}

/// Opens a directory of a root; creates it if missing.
fn directory(root: &OwnedFd, path: &Path) -> std::io::Result<OwnedFd> {
    let mut current = root.try_clone()?;
    let mut reached = PathBuf::new();
    for name in path {
        reached.push(name);
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        current = match openat2(root, &reached, how) {
            Err(nix::errno::Errno::ENOENT) => {
                nix::sys::stat::mkdirat(&current, name, Bits::from_bits_truncate(0o755))?;
                openat2(root, &reached, how)?
            }
            found => found?,
        };
    }
    Ok(current)
}

fn evil_name(path: &Path) -> String {
    format!("{}.evil", path.file_name().unwrap().display())
}

/// Exchanges until it is stopped; returns the number of exchanges.
fn exchange(parent: &OwnedFd, path: &Path, stop: &AtomicBool) -> u64 {
    let (name, evil) = (path.file_name().unwrap(), evil_name(path));
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let flags = RenameFlags::RENAME_EXCHANGE;
        // A mount point cannot be renamed.
        if renameat2(parent, name, parent, evil.as_str(), flags).is_ok() {
            count += 1;
        } else {
            thread::yield_now();
        }
    }
    count
}

/// Returns the linker caches in a root, wherever they are now.
fn caches(root: &Path) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            if kind.is_dir() && path != root.join("proc") {
                pending.push(path);
            } else if kind.is_file()
                && entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("ld.so.cache")
            {
                found.push((path.clone(), fs::read(&path)?));
            }
        }
    }
    Ok(found)
}
