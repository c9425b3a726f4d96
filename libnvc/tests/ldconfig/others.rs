//! Runs the ldconfig of other distributions in the sandbox; scripts/test/ldconfigs.sh fetches them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use libnvc::options::Ldconfig;
use libnvc::testing::PreparedLdconfig;

use super::sandbox::ALLOWED;
use super::support::{LIBRARY_DIR, Root, Run, library_directories, prepare};

/// Names the list of programs: a line `SUITE ARCHITECTURE PATH` each.
pub(crate) const LIST: &str = "NVC_LDCONFIGS";

/// Outside the sandbox `-r` changes the root, and strace starts the program; inside, these calls kill it.
const EXPECTED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_chroot,
    libc::SYS_exit_group,
    libc::SYS_futex,
];

pub(crate) fn others_ldconfigs() {
    let list = fs::read_to_string(std::env::var_os(LIST).unwrap()).unwrap();
    let mut run = 0;
    for line in list.lines() {
        let [suite, architecture, path] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let path = Path::new(path);
        let version = Command::new(path).arg("-V").output().unwrap();
        let version = String::from_utf8_lossy(&version.stdout);
        let version = version.lines().next().unwrap_or_default().to_owned();
        match architecture {
            "amd64" => in_the_sandbox(path),
            // A binary of another architecture is rejected with an error.
            _ => refused(path),
        }
        let calls = if architecture == "amd64" {
            outside_the_sandbox(path)
        } else {
            BTreeMap::new()
        };
        let others: Vec<_> = calls
            .iter()
            .filter(|(number, _)| !ALLOWED.contains(number) && !EXPECTED.contains(number))
            .map(|(_, name)| name.as_str())
            .collect();
        println!(
            "{suite} {architecture}: {version}: {} calls, not on the list: {others:?}",
            calls.len()
        );
        // isatty; the answer is no either way.
        assert!(others.iter().all(|name| *name == "ioctl"), "{others:?}");
        run += 1;
    }
    assert!(run > 0, "nothing to run");
}

/// Creates a root that exercises many of ldconfig's code paths.
fn rich_root() -> Root {
    let root = Root::new();
    let directory = root.join(LIBRARY_DIR);
    root.add_library("libnew.so.0.9", "libnew.so.1");
    symlink("libnew.so.0.9", directory.join("libnew.so.1")).unwrap();
    symlink("nowhere", directory.join("libdangling.so.1")).unwrap();
    fs::write(directory.join("libtext.so.1"), "INPUT(-lnew)\n").unwrap();
    fs::write(directory.join("libempty.so.1"), "").unwrap();
    fs::write(directory.join("libcut.so.1"), b"\x7fELF\x02\x01\x01").unwrap();
    for subdirectory in ["glibc-hwcaps/x86-64-v2", "tls", "haswell/avx512_1"] {
        fs::create_dir_all(directory.join(subdirectory)).unwrap();
        let copy = directory.join(subdirectory).join("libnew.so.1.0");
        fs::copy(directory.join("libnew.so.1.0"), copy).unwrap();
    }
    fs::write(
        root.join("/etc/ld.so.conf.d/more.conf"),
        "/opt/more\n/nowhere\ninclude /etc/more/*.conf\nhwcap 1 nosegneg\n",
    )
    .unwrap();
    fs::create_dir_all(root.join("/opt/more")).unwrap();
    fs::create_dir_all(root.join("/var/cache/ldconfig")).unwrap();
    root
}

fn prepared(path: &Path) -> PreparedLdconfig {
    let program = Ldconfig::Host(path.to_owned());
    prepare(&program, &library_directories(), false).unwrap()
}

/// Runs it twice, because the second run reads the auxiliary cache; as root and as another owner, and in a root where
/// it must fail.
fn in_the_sandbox(path: &Path) {
    let root = rich_root();
    for _ in 0..2 {
        Run::default().prepared(&root, &prepared(path)).unwrap();
        assert!(
            root.has_new_library(),
            "{}: {}",
            path.display(),
            root.cached()
        );
    }
    let root = rich_root();
    let run = Run {
        old_kernel: true,
        ..Run::default()
    };
    run.prepared(&root, &prepared(path)).unwrap();
    assert!(root.has_new_library(), "{}", path.display());
    let run = Run {
        read_only: true,
        ..Run::default()
    };
    let error = run.prepared(&rich_root(), &prepared(path)).unwrap_err();
    assert!(
        error.message().contains("failed with error code"),
        "{error:?}"
    );
}

fn refused(path: &Path) {
    let error = Run::default()
        .prepared(&rich_root(), &prepared(path))
        .unwrap_err();
    let hint = error.advice().unwrap_or_default();
    assert!(hint.contains("another architecture"), "{error:?}");
}

/// Returns the system calls it makes without a filter, by number.
fn outside_the_sandbox(path: &Path) -> BTreeMap<libc::c_long, String> {
    let root = rich_root();
    let log = root.scratch.join("strace");
    let mut calls = BTreeMap::new();
    for _ in 0..2 {
        let status = Command::new("strace")
            .args(["-f", "-n", "-qq", "-o"])
            .args([&log, path, Path::new("-r"), &root.path])
            .args(["-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache"])
            .args([LIBRARY_DIR, "/usr/lib/i386-linux-gnu"])
            .output()
            .unwrap();
        assert!(status.status.success(), "{status:?}");
        // `1234 [   59] execve(…`
        for line in fs::read_to_string(&log).unwrap().lines() {
            let number = line
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'));
            let Some((number, rest)) = number else {
                continue;
            };
            let name = rest.trim_start().split('(').next().unwrap_or_default();
            if let Ok(number) = number.trim().parse() {
                calls.insert(number, name.to_owned());
            }
        }
    }
    assert!(calls.len() > 10, "{calls:?}");
    calls
}
