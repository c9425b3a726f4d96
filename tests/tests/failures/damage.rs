//! Tests damaged files of the host, at any offset and of any kind: linker caches, libraries, NVML itself.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::files;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{Test, cases};
use nvc_testkit::machine::Scratch;
use nvc_tests::command_line;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root];
        a_cache_with_any_damage,
        a_cache_of_any_kind,
        a_huge_cache,
        a_library_cut_anywhere,
        nvml_cut_anywhere,
        nvml_with_any_damage,
    ]
}

/// Damage to a file.
#[derive(Clone, Debug)]
enum Damage {
    /// Truncated at a position in thousandths of its length.
    Cut(usize),
    /// Changed bytes: a position in thousandths, an offset from there, and the value.
    Bytes(Vec<(usize, usize, u8)>),
    /// A changed number at an offset from the start.
    Number(usize, u32),
    /// Replaced content.
    Other(Vec<u8>),
}

impl Damage {
    fn any() -> impl Strategy<Value = Self> {
        let byte = (0..1000usize, 0..64usize, any::<u8>());
        prop_oneof![
            (0..1000usize).prop_map(Self::Cut),
            prop::collection::vec(byte, 1..40).prop_map(Self::Bytes),
            (0..256usize, any::<u32>()).prop_map(|(at, number)| Self::Number(at, number)),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Self::Other),
        ]
    }

    fn apply(&self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        match self {
            Self::Cut(at) => bytes.truncate(whole.len() * at / 1000),
            Self::Bytes(places) => {
                for (part, more, byte) in places {
                    if let Some(place) = bytes.get_mut(whole.len() * part / 1000 + more) {
                        *place = *byte;
                    }
                }
            }
            Self::Number(at, number) => {
                let end = (at + 4).min(bytes.len());
                bytes.splice((*at).min(end)..end, number.to_ne_bytes());
            }
            Self::Other(other) => bytes.clone_from(other),
        }
        bytes
    }
}

/// Runs a test with a number of damages.
fn check(number: usize, test: impl Fn(&Damage)) {
    let config = Config {
        cases: u32::try_from(number).unwrap(),
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&Damage::any(), |damage| {
            test(&damage);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

struct Subject {
    driver: Driver,
    /// The list without damage.
    whole: Vec<String>,
    _scratch: Scratch,
}

impl Subject {
    fn new() -> Self {
        let scratch = Scratch::new().unwrap();
        let driver = Builder::default().build(scratch.path()).unwrap();
        let mut subject = Self {
            driver,
            whole: Vec::new(),
            _scratch: scratch,
        };
        let outcome = subject.list(&[]);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        subject.whole = outcome.stdout.lines().map(str::to_owned).collect();
        assert!(subject.whole.len() > 20, "{outcome:#?}");
        subject
    }

    fn list(&self, options: &[&str]) -> Outcome {
        // A damaged NVML may do anything, including block forever; a busy machine needs time.
        self.list_within("15", options)
    }

    fn list_within(&self, seconds: &str, options: &[&str]) -> Outcome {
        let words = [options, &["list", "--libraries", "--compat32"]].concat();
        let run = Run::cli(command_line(&self.driver, &words)).env("NVC_DRIVER_TIMEOUT", seconds);
        run.outcome().unwrap()
    }

    /// Checks that it lists no missing file, or reports why it cannot; either way it ends by itself.
    fn check(&self, outcome: &Outcome) {
        let fine = match outcome.status {
            Some(0) => true,
            Some(1) => outcome.message().starts_with("nvidia-container-cli: "),
            _ => false,
        };
        assert!(
            fine && outcome.orphans.is_empty() && !outcome.stderr.contains("panicked"),
            "{outcome:#?}"
        );
        // A damaged cache may give a library another one's file, but that file exists.
        for line in outcome.stdout.lines() {
            let file = self.driver.path(line);
            assert!(file.is_file(), "{line}: {outcome:#?}");
        }
    }
}

const CACHE: &str = "/etc/ld.so.cache";

fn a_cache_with_any_damage() {
    let subject = Subject::new();
    let path = subject.driver.path(CACHE);
    let whole = fs::read(&path).unwrap();
    let refused = Cell::new(0);
    check(cases(60, 1500), |damage| {
        fs::write(&path, damage.apply(&whole)).unwrap();
        // The usual directories come before the cache.
        let outcome = subject.list(&[]);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        subject.check(&outcome);
        // A cache named by the caller.
        let outcome = subject.list(&["--ldcache=/etc/ld.so.cache"]);
        subject.check(&outcome);
        if outcome.stderr.contains("unsupported file format") {
            refused.set(refused.get() + 1);
        }
    });
    assert!(refused.get() > 0);
}

fn a_cache_of_any_kind() {
    let subject = Subject::new();
    let path = subject.driver.path(CACHE);
    type Make = fn(&Path);
    let kinds: &[(&str, Make)] = &[
        ("nothing", |_| {}),
        ("directory", |path| fs::create_dir(path).unwrap()),
        ("fifo", |path| {
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
            nix::unistd::mkfifo(path, mode).unwrap();
        }),
        ("loop", |path| symlink("ld.so.cache", path).unwrap()),
        ("dangling link", |path| symlink("nowhere", path).unwrap()),
        ("socket", |path| {
            let _ = std::os::unix::net::UnixListener::bind(path).unwrap();
        }),
        ("endless device", |path| {
            let (kind, mode) = (
                nix::sys::stat::SFlag::S_IFCHR,
                nix::sys::stat::Mode::from_bits_truncate(0o666),
            );
            let zero = nix::sys::stat::makedev(1, 5);
            nix::sys::stat::mknod(path, kind, mode, zero).unwrap();
        }),
        ("empty file", |path| files::file(path, "", 0o644).unwrap()),
    ];
    fs::remove_file(&path).unwrap();
    for (kind, make) in kinds {
        make(&path);
        let seconds = if *kind == "fifo" { "1" } else { "15" };
        let list = |options: &[&str]| subject.list_within(seconds, options);
        let outcome = list(&[]);
        if *kind == "fifo" && outcome.status != Some(0) {
            // The C library blocks while it loads NVML, but no longer than the deadline.
            assert!(outcome.stderr.contains("timed out"), "{outcome:#?}");
        } else {
            assert_eq!(outcome.status, Some(0), "{kind}: {outcome:#?}");
            assert_eq!(
                outcome.stdout.lines().count(),
                subject.whole.len(),
                "{kind}"
            );
        }
        let outcome = list(&["--ldcache=/etc/ld.so.cache"]);
        assert_eq!(outcome.status, Some(1), "{kind}: {outcome:#?}");
        subject.check(&outcome);
        if path.is_dir() {
            fs::remove_dir(&path).unwrap();
        } else if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).unwrap();
        }
    }
}

/// More than is ever read, with many entries whose names all begin at the same offset and end far away.
fn a_huge_cache() {
    let subject = Subject::new();
    let entries: u32 = 200_000;
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    bytes.extend(entries.to_ne_bytes());
    bytes.resize(48, 0);
    let strings = 48 + 24 * entries;
    for _ in 0..entries {
        bytes.extend(0x303u32.to_ne_bytes());
        bytes.extend(strings.to_ne_bytes());
        bytes.extend(strings.to_ne_bytes());
        bytes.extend([0; 12]);
    }
    bytes.resize(65 << 20, b'x');
    fs::write(subject.driver.path(CACHE), bytes).unwrap();
    let outcome = subject.list(&[]);
    subject.check(&outcome);
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
}

/// The libraries whose headers are read; a unit test truncates those that only the C library's callers request.
fn a_library_cut_anywhere() {
    let subject = Subject::new();
    for path in ["/LIB/libnvidia-tls.so.VER", "/LIB32/libnvidia-tls.so.VER"] {
        let path = subject.driver.fill(path);
        let file = subject.driver.path(&path);
        let whole = fs::read(&file).unwrap();
        let number = cases(20, whole.len());
        for case in 0..number {
            fs::write(&file, &whole[..whole.len() * case / number]).unwrap();
            let outcome = subject.list(&[]);
            assert_eq!(outcome.status, Some(0), "{outcome:#?}");
            subject.check(&outcome);
            // Whatever happens to it, all others are listed.
            for line in &subject.whole {
                let listed = outcome.stdout.lines().any(|found| found == line);
                assert!(listed || *line == path, "{line}: {outcome:#?}");
            }
            let listed = outcome.stdout.lines().any(|found| found == path);
            assert!(
                listed || outcome.stderr.contains(&format!("skipping {path}")),
                "{case}: {outcome:#?}"
            );
        }
        fs::write(&file, whole).unwrap();
    }
}

fn nvml(subject: &Subject) -> std::path::PathBuf {
    let path = subject.driver.fill("/LIB/libnvidia-ml.so.VER");
    subject.driver.path(path)
}

fn nvml_cut_anywhere() {
    let subject = Subject::new();
    let file = nvml(&subject);
    let whole = fs::read(&file).unwrap();
    let number = cases(30, 800);
    for case in 0..number {
        fs::write(&file, &whole[..whole.len() * case / number]).unwrap();
        subject.check(&subject.list(&[]));
    }
}

fn nvml_with_any_damage() {
    let subject = Subject::new();
    let file = nvml(&subject);
    let whole = fs::read(&file).unwrap();
    check(cases(30, 800), |damage| {
        fs::write(&file, damage.apply(&whole)).unwrap();
        let outcome = subject.list(&[]);
        // A damaged NVML's answers may be wrong; that cannot be detected.
        let fine = match outcome.status {
            Some(0) => true,
            Some(1) => outcome.message().starts_with("nvidia-container-cli: "),
            _ => false,
        };
        assert!(
            fine && outcome.orphans.is_empty() && !outcome.stderr.contains("panicked"),
            "{outcome:#?}"
        );
    });
}
