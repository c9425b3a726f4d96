//! Tests image files that would take forever to read, open or copy.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use libnvc::Error;
use nvc_testkit::helper::Helper;
use nvc_testkit::tree::Tree;

use super::support::{Root, Run};

/// More than the size limit of a snapshot's file.
const TOO_MUCH: u64 = (16 << 20) + 1;

/// Long enough for any bounded operation.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes a snapshot of a root and restores it, in a thread that is abandoned if it does not finish.
fn take_snapshot(root: Root) -> (Result<(), Error>, Root) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let done = Run::default().restoring(&root, || {});
        tell.send((done, root))
    });
    told.recv_timeout(PATIENCE).expect("it does not end")
}

/// Checks that the root is rejected with this error and unchanged.
fn is_refused(root: Root, text: &str) {
    let before = Tree::of(&root.path).unwrap();
    let (done, root) = take_snapshot(root);
    assert_eq!(done.unwrap_err().message(), text);
    let after = Tree::of(&root.path).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}

/// A copy would allocate every hole.
pub(crate) fn large_files_are_not_kept() {
    for name in [
        "/etc/ld.so.cache",
        "/etc/ld.so.cache~",
        "/var/cache/ldconfig/aux-cache",
        "/var/cache/ldconfig/aux-cache~",
    ] {
        let root = Root::new();
        fs::create_dir_all(root.join("/var/cache/ldconfig")).unwrap();
        File::create(root.join(name))
            .unwrap()
            .set_len(TOO_MUCH)
            .unwrap();
        let text = "it has more than 16777216 bytes";
        is_refused(root, &format!("saving failed: {name}: {text}"));
    }
}

/// A file that was small when it was checked.
pub(crate) fn a_file_that_grows_is_not_copied() {
    let root = Root::new();
    let cache = root.join("/etc/ld.so.cache");
    let replaced = || {
        let old = File::options().write(true).open(&cache).unwrap();
        fs::remove_file(&cache).unwrap();
        fs::write(&cache, "new").unwrap();
        old.set_len(TOO_MUCH).unwrap();
    };
    let failed = Run::default().restoring(&root, replaced).unwrap_err();
    assert_eq!(
        failed.message(),
        "putting back failed: /etc/ld.so.cache: file too large"
    );
    assert!(!root.join("/etc/ld.so.cache~").exists());
}

/// Reading /proc/kmsg blocks, and consumes messages meant for the host's log daemon.
pub(crate) fn the_kernels_files_are_not_read() {
    for file in ["/proc/kmsg", "/proc/version", "/sys/kernel/uevent_seqnum"] {
        for name in ["/etc/ld.so.conf", "/etc/ld.so.conf.d/a.conf"] {
            let root = Root::new();
            fs::create_dir_all(root.join("/etc/ld.so.conf.d")).unwrap();
            let text = "include /etc/ld.so.conf.d/*.conf\n";
            fs::write(root.join("/etc/ld.so.conf"), text).unwrap();
            let _ = fs::remove_file(root.join(name)); // one is not there
            symlink(file, root.join(name)).unwrap();
            let why = "it is a file that the kernel makes up";
            is_refused(root, &format!("ldconfig would block: {name}: {why}"));
        }
    }
}

/// A file's owner can take a lease, and each conflicting open waits 45 seconds for it to be released.
pub(crate) fn leases_are_not_waited_for() {
    for name in [
        "/etc/ld.so.conf",
        "/etc/ld.so.cache",
        "/etc/ld.so.cache~",
        "/var/cache/ldconfig/aux-cache",
    ] {
        let root = Root::new();
        fs::create_dir_all(root.join("/var/cache/ldconfig")).unwrap();
        let path = root.join(name);
        if !path.exists() {
            fs::write(&path, "").unwrap();
        }
        let mut holder = Command::new("python3");
        holder.args(["-c", LEASE]).arg(&path);
        let holder = Helper::start(&mut holder, "ready").unwrap();
        let why = "another process holds a lease on it";
        let (done, _root) = take_snapshot(root);
        // A new file is reported by its final name.
        let name = name.trim_end_matches('~');
        let text = format!("ldconfig would block: {name}: {why}");
        assert_eq!(done.unwrap_err().message(), text);
        drop(holder);
    }
}

/// Takes a lease and does not release it.
const LEASE: &str = "
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], 'r+')
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('ready', flush=True)
sys.stdin.read()
";
