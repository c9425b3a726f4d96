//! Tests that the host's ldconfig runs for caches that are stale, unusual or hostile.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nvc_testkit::container::Builder;
use nvc_testkit::files;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self, Test};
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::{debian, debian_root, start};

use super::words::{dry_run, dry_run_line};
use super::{EVERYTHING, automatic, builtin, fallback, ldconfig, listed, native};

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root];
        stale_caches,
        fractions_of_a_second,
        times_that_prove_nothing,
        names_that_explain_themselves,
        unusable_caches,
        a_huge_cache_is_refused,
        things_in_the_place_of_the_cache,
        a_cache_that_is_a_device_by_turns,
        a_cache_cut_or_garbled,
        hostile_surroundings,
    ]
}

/// Checks that the host's ldconfig runs, for this reason, and succeeds.
#[track_caller]
fn falls_back(edit: impl Fn(&Path), reason: &str) {
    let container = start(Builder::new(debian_root().no_programs()));
    edit(container.root());
    let log = builtin(&container, &["--utility", "--compute", "--device=0"]);
    let found = fallback(&log).unwrap_or_default();
    let reason = machine::driver().fill(reason);
    assert!(found.contains(&reason), "{found:?}, not {reason:?}");
    let lines = listed(container.root());
    assert!(
        lines.iter().any(|line| line.contains("libcuda.so.1 ")),
        "{lines:#?}"
    );
}

/// Changes a file's or directory's time by some hours.
fn touch(path: &Path, hours: &str) {
    let status = Command::new("touch")
        .args(["-h", "-d", hours])
        .arg(path)
        .status();
    assert!(status.unwrap().success());
}

fn stale_caches() {
    for path in [
        "etc/ld.so.conf",
        "etc/ld.so.conf.d",
        "etc/ld.so.conf.d/libraries.conf",
    ] {
        falls_back(
            |root| touch(&root.join(path), "1 hour"),
            "older than /etc/ld.so.conf",
        );
    }
    for (path, reason) in [
        ("opt/x", "older than /opt/x"),
        ("LIB", "/etc/ld.so.cache is older than /"),
        ("LIB/glibc-hwcaps/x86-64-v2", "/glibc-hwcaps/x86-64-v2"),
    ] {
        let edit = |root: &Path| {
            list_libraries(root);
            touch(&root.join(machine::driver().fill(path)), "1 hour");
        };
        falls_back(edit, reason);
    }
    falls_back(
        |root| {
            list_libraries(root);
            fs::remove_dir_all(root.join("opt/x")).unwrap();
        },
        "lists /opt/x, which does not exist",
    );
    falls_back(
        |root| {
            native(root, "/opt/x/libfoo.so.1", "libfoo.so.1");
            files::file(&root.join("etc/ld.so.conf.d/x.conf"), "/opt/x\n", 0o644).unwrap();
            touch(&root.join("etc/ld.so.cache"), "1 hour");
        },
        "lists none of the libraries in /opt/x",
    );
}

/// Adds libraries in several directories and lists them in the cache.
fn list_libraries(root: &Path) {
    for path in ["/opt/x", "/LIB", "/LIB/glibc-hwcaps/x86-64-v2"] {
        native(root, &format!("{path}/libfoo.so.1"), "libfoo.so.1");
    }
    files::file(&root.join("etc/ld.so.conf.d/x.conf"), "/opt/x\n", 0o644).unwrap();
    ldconfig(root, &[]);
}

/// Archives have whole seconds: a difference of less counts as the same age.
fn fractions_of_a_second() {
    let container = start(Builder::new(debian_root().no_programs()));
    let at = |path: &str| container.root().join(path);
    touch(&at("etc/ld.so.cache"), "2020-01-01 12:00:00");
    for path in [
        "etc/ld.so.conf",
        "etc/ld.so.conf.d",
        "etc/ld.so.conf.d/libraries.conf",
        "usr/lib",
        "usr/lib64",
    ] {
        touch(&at(path), "2020-01-01 12:00:00.7");
    }
    let log = builtin(&container, &["--utility", "--device=0"]);
    assert_eq!(fallback(&log), None);
}

/// Sets the same time on all files, as builders of reproducible images do.
fn same_time(root: &Path) {
    let mut command = Command::new("find");
    command
        .arg(root)
        .args(["-exec", "touch", "-h", "-d", "@0", "{}", "+"]);
    assert!(command.status().unwrap().success());
}

fn times_that_prove_nothing() {
    let list = |root: &Path| {
        native(root, "/LIB/libfoo.so.1.2", "libfoo.so.1");
        native(root, "/opt/x/libbar.so.1", "libbar.so.1");
        files::file(&root.join("etc/ld.so.conf.d/x.conf"), "/opt/x\n", 0o644).unwrap();
        ldconfig(root, &[]);
    };
    let changed = |change: &'static dyn Fn(&Path)| {
        move |root: &Path| {
            list(root);
            change(root);
            same_time(root);
        }
    };
    let added = "/etc/ld.so.cache does not list /opt/x/libbaz.so.3";
    falls_back(
        changed(&|root| native(root, "/opt/x/libbaz.so.3", "libbaz.so.3")),
        added,
    );
    // Another major version, and a name that differs from the SONAME.
    let added = "/etc/ld.so.cache does not list /opt/x/libbar.so.2";
    falls_back(
        changed(&|root| native(root, "/opt/x/libbar.so.2.0", "libbar.so.2")),
        added,
    );
    let added = "/etc/ld.so.cache does not list /opt/x/libbar-2.so";
    falls_back(
        changed(&|root| native(root, "/opt/x/libbar-2.so", "libbar.so.2")),
        added,
    );
    let gone = "/etc/ld.so.cache lists libraries that are not in /opt/x";
    falls_back(
        changed(&|root| fs::remove_file(root.join("opt/x/libbar.so.1")).unwrap()),
        gone,
    );
    // Nothing has changed.
    let container = start(Builder::new(debian_root().no_programs()));
    changed(&|_| ())(container.root());
    assert_eq!(
        fallback(&builtin(&container, &["--utility", "--device=0"])),
        None
    );
}

/// Files that are rightly missing from the cache.
fn names_that_explain_themselves() {
    let container = start(Builder::new(debian_root().no_programs()));
    let root = container.root();
    native(root, "/LIB/libfoo-2.31.so", "libfoo.so.6");
    native(root, "/LIB/libbar.so.1.2.3", "libbar.so.1");
    native(root, "/LIB/libtwice-2.so", "libbar.so.1");
    let place = |name: &str| root.join(machine::driver().fill("LIB").as_str()).join(name);
    files::file(&place("libscript.so"), "/* GNU ld script */", 0o644).unwrap();
    ldconfig(root, &[]);
    symlink("libfoo.so.6", place("libfoo.so")).unwrap();
    symlink("nowhere", place("libdangling.so")).unwrap();
    fs::create_dir(place("libdirectory.so.1")).unwrap();
    touch(&root.join("etc/ld.so.cache"), "1 hour");
    assert_eq!(
        fallback(&builtin(&container, &["--utility", "--device=0"])),
        None
    );
}

fn unusable_caches() {
    let place = |root: &Path| root.join("etc/ld.so.cache");
    let write = |bytes: &'static [u8]| move |root: &Path| fs::write(place(root), bytes).unwrap();
    falls_back(
        |root| fs::remove_file(place(root)).unwrap(),
        "no such file or directory",
    );
    falls_back(write(b""), "another format");
    falls_back(write(b"glibc-ld.so.cache1.1"), "another format");
    falls_back(write(&[0xff; 9000]), "another format");
    falls_back(|root| ldconfig(root, &["-c", "old"]), "another format");
}

/// ldconfig would replace it, and a later failure could not restore it.
fn a_huge_cache_is_refused() {
    let container = debian();
    let place = container.root().join("etc/ld.so.cache");
    File::create(&place).unwrap().set_len(1 << 40).unwrap();
    let before = container.mounts().unwrap();
    let message = automatic(&container, &["--utility", "--device=0"]).fails();
    assert!(
        message.contains("/etc/ld.so.cache: it has more than"),
        "{message}"
    );
    assert_eq!(place.metadata().unwrap().len(), 1 << 40);
    assert_eq!(container.mounts().unwrap(), before);
}

fn things_in_the_place_of_the_cache() {
    for kind in ["link", "fifo", "device"] {
        let edit = |root: &Path| {
            let place = root.join("etc/ld.so.cache");
            fs::remove_file(&place).unwrap();
            let mut command = match kind {
                "link" => return symlink("/etc/passwd", &place).unwrap(),
                "fifo" => Command::new("mkfifo"),
                _ => Command::new("mknod"),
            };
            command.arg(&place);
            if kind == "device" {
                command.args(["c", "4000", "0"]);
            }
            assert!(command.status().unwrap().success());
        };
        falls_back(edit, "not a regular file");
    }
}

/// A device must not be opened, which can have side effects: this one would report a missing driver.
fn a_cache_that_is_a_device_by_turns() {
    let container = debian();
    let etc = File::open(container.root().join("etc")).unwrap();
    let device = container.root().join("etc/device");
    let mut command = Command::new("mknod");
    let status = command.arg(&device).args(["c", "4000", "0"]).status();
    assert!(status.unwrap().success());
    assert_eq!(
        File::open(&device).unwrap_err().raw_os_error(),
        Some(Errno::ENXIO as i32)
    );
    let stop = AtomicBool::new(false);
    let (reasons, exchanges) = thread::scope(|scope| {
        let racer = scope.spawn(|| {
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let flags = RenameFlags::RENAME_EXCHANGE;
                let done = renameat2(&etc, "ld.so.cache", &etc, "device", flags);
                count += u64::from(done.is_ok());
            }
            count
        });
        let mut reasons = BTreeSet::new();
        let scratch = Scratch::new().unwrap();
        for number in 0..harness::cases(100, 2000) {
            // Nothing is mounted, so all runs see the same.
            let log = scratch.join(format!("log{number}"));
            let run = dry_run_line(&container, "builtin", "text");
            let outcome = run.env("NVC_DEBUG_FILE", &log).outcome();
            let log = fs::read_to_string(log).unwrap_or_default();
            let reason = log.split_once("not the builtin ldconfig: ");
            reasons.extend(reason.and_then(|(_, reason)| reason.lines().next().map(str::to_owned)));
            if outcome.is_err() {
                reasons.insert("it cannot be run".to_owned());
            }
        }
        stop.store(true, Ordering::Relaxed);
        (reasons, racer.join().unwrap())
    });
    assert!(exchanges > 0);
    assert_eq!(
        Vec::from_iter(reasons),
        ["/etc/ld.so.cache: it is not a regular file"]
    );
}

/// Whatever the bytes, one of the two ways works without messages.
fn a_cache_cut_or_garbled() {
    let container = debian();
    let place = container.root().join("etc/ld.so.cache");
    builtin(&container, EVERYTHING);
    let good = fs::read(&place).unwrap();
    let mut seed = 12345_usize;
    let mut random = move |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..harness::cases(12, 500) {
        let mut bytes = good.clone();
        match round % 3 {
            0 => bytes.truncate(random(good.len())),
            1 => (0..3).for_each(|_| bytes[random(good.len())] = 0xff),
            // In the header.
            _ => bytes[20 + random(28)] ^= 1 << random(8),
        }
        fs::write(&place, bytes).unwrap();
        builtin(&container, &["--utility", "--device=0"]);
    }
}

fn hostile_surroundings() {
    let container = debian();
    let conf = container.root().join("etc/ld.so.conf");
    fs::write(
        &conf,
        "include /many/*a*a*a\n/nowhere/at/all\n".repeat(4000),
    )
    .unwrap();
    touch(&conf, "-1 hour");
    let text = dry_run(&container, "builtin", "text");
    assert!(text.contains(" by /sbin/ldconfig of the host"), "{text}");
    falls_back(
        |root| {
            // The subdirectory is in another directory, or missing if the link is followed on the host.
            let link = root.join(machine::driver().fill("LIB/glibc-hwcaps"));
            native(root, "/LIB/libfoo.so.1", "libfoo.so.1");
            symlink("/../../../../../../../../only-here", link).unwrap();
            files::directory(&root.join("only-here/x86-64-v2")).unwrap();
            ldconfig(root, &[]);
            touch(&root.join("only-here/x86-64-v2"), "1 hour");
        },
        "/glibc-hwcaps/x86-64-v2",
    );
    // /etc itself is a link, as it may be.
    let container = start(Builder::new(debian_root().no_programs()));
    let root = container.root();
    fs::rename(root.join("etc"), root.join("usr/etc")).unwrap();
    symlink("/usr/etc", root.join("etc")).unwrap();
    assert_eq!(
        fallback(&builtin(&container, &["--utility", "--device=0"])),
        None
    );
    assert!(root.join("usr/etc/ld.so.cache").is_file());
}
