//! Lets ldconfig change roots, restores them, and compares the result.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::time::{Duration, Instant};

use nvc_testkit::tree::Tree;

use super::support::{LIBRARY_DIR, Root, Run};

fn comes_back(root: &Root) {
    let before = Tree::of(&root.path).unwrap();
    let run = Run::default();
    let changed = || {
        run.host(root).unwrap();
        let changes = Tree::of(&root.path).unwrap().changes_since(&before);
        assert!(!changes.is_empty());
        assert!(root.has_new_library());
    };
    run.restoring(root, changed).unwrap();
    let after = Tree::of(&root.path).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}

pub(crate) fn an_ordinary_root_comes_back() {
    comes_back(&Root::new());
}

pub(crate) fn redirected_links_come_back() {
    let root = Root::new();
    // An older library of the same name, to which the link points: ldconfig changes the link.
    root.add_library("libnew.so.0.9", "libnew.so.1");
    let directory = root.join(LIBRARY_DIR);
    symlink("libnew.so.0.9", directory.join("libnew.so.1")).unwrap();
    // One in a directory of ld.so.conf.d, and one in a subdirectory for newer CPUs.
    fs::write(root.join("/etc/ld.so.conf.d/more.conf"), "/opt/more\n").unwrap();
    let features = directory.join("glibc-hwcaps/x86-64-v2");
    fs::create_dir_all(&features).unwrap();
    fs::create_dir_all(root.join("/opt/more")).unwrap();
    for target in [&features, &root.join("/opt/more")] {
        fs::copy(
            directory.join("libnew.so.1.0"),
            target.join("libnew.so.1.0"),
        )
        .unwrap();
        symlink("somewhere", target.join("libother.so")).unwrap();
    }
    comes_back(&root);
}

pub(crate) fn a_cache_of_unusual_kind_comes_back() {
    let cache = "/etc/ld.so.cache";
    let root = Root::new();
    fs::remove_file(root.join(cache)).unwrap();
    comes_back(&root);

    let root = Root::new();
    fs::set_permissions(root.join(cache), Permissions::from_mode(0o640)).unwrap();
    // Fails in a user namespace.
    let _ = chown(root.join(cache), Some(12), Some(34));
    comes_back(&root);

    let root = Root::new();
    fs::remove_file(root.join(cache)).unwrap();
    symlink("/etc/elsewhere", root.join(cache)).unwrap();
    comes_back(&root);
    assert!(!root.join("/etc/elsewhere").exists());
}

pub(crate) fn notes_come_back() {
    let root = Root::new();
    fs::remove_dir_all(root.join("/var/cache")).unwrap_or_default();
    fs::create_dir_all(root.join("/var/cache")).unwrap();
    comes_back(&root);
    fs::create_dir_all(root.join("/var/cache/ldconfig")).unwrap();
    comes_back(&root);
    fs::write(root.join("/var/cache/ldconfig/aux-cache"), "old").unwrap();
    comes_back(&root);
}

/// ldconfig's directory goes, so that `configure` can remove those above it, which it created while ldconfig ran. One of
/// them may be the target of a link of the image.
pub(crate) fn directories_of_notes_go() {
    let notes = "/var/cache/ldconfig";
    for (missing, target) in [
        ("/var", None),
        ("/var/cache", None),
        ("/var", Some("elsewhere")),
        ("/var/cache", Some("../elsewhere/cache")),
        (notes, Some("../../elsewhere")),
    ] {
        for kept in [None, Some("kept")] {
            let root = Root::new();
            let (at, notes) = (root.join(missing), root.join(notes));
            fs::remove_dir_all(&at).unwrap_or_default();
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            let change = || {
                if let Some(target) = target {
                    fs::create_dir_all(at.parent().unwrap().join(target)).unwrap();
                }
                fs::create_dir_all(&notes).unwrap();
                for name in ["aux-cache", "aux-cache~"].into_iter().chain(kept) {
                    fs::write(notes.join(name), "new").unwrap();
                }
            };
            if let Some(target) = target {
                symlink(target, &at).unwrap();
            }
            Run::default().restoring(&root, change).unwrap();
            let left = fs::read_dir(&notes).into_iter().flatten();
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, Vec::from_iter(kept), "{missing} -> {target:?}");
            let is_gone = kept.is_none() && at != notes;
            assert_eq!(!notes.exists(), is_gone, "{missing} -> {target:?}");
            assert!(notes.parent().unwrap().exists(), "another's is gone");
        }
    }
}

/// A file with the name of ldconfig's new file makes ldconfig fail, so it was not ldconfig's.
pub(crate) fn obstacles_stay() {
    for obstacle in ["directory", "link"] {
        let root = Root::new();
        let path = root.join("/etc/ld.so.cache~");
        match obstacle {
            "link" => symlink("nowhere", &path).unwrap(),
            _ => fs::create_dir(&path).unwrap(),
        }
        let before = Tree::of(&root.path).unwrap();
        let run = Run::default();
        run.restoring(&root, || assert!(run.host(&root).is_err()))
            .unwrap();
        let after = Tree::of(&root.path).unwrap();
        assert_eq!(after.changes_since(&before), [""; 0], "{obstacle}");
    }
}

/// An unfinished file of an earlier run, into which ldconfig would write, and its hard links.
pub(crate) fn unfinished_files_come_back() {
    for name in ["/etc/ld.so.cache~", "/var/cache/ldconfig/aux-cache~"] {
        let root = Root::new();
        fs::create_dir_all(root.join("/var/cache/ldconfig")).unwrap();
        fs::write(root.join(name), "unfinished").unwrap();
        comes_back(&root);
        fs::write(root.join("/etc/precious"), "precious").unwrap();
        fs::remove_file(root.join(name)).unwrap();
        fs::hard_link(root.join("/etc/precious"), root.join(name)).unwrap();
        comes_back(&root);
        let inode = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
        assert_eq!(inode(name), inode("/etc/precious"));
    }
}

pub(crate) fn hard_links_come_back() {
    let root = Root::new();
    let (cache, other) = (root.join("/etc/ld.so.cache"), root.join("/etc/other"));
    fs::hard_link(&cache, &other).unwrap();
    comes_back(&root);
    let inode = |path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&cache), inode(&other));
}

/// ldconfig would block on each of them until its deadline, half a minute.
pub(crate) fn fifos_are_reported() {
    for name in [
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d/a.conf",
        "/etc/ld.so.cache~",
        "/var/cache/ldconfig/aux-cache",
        "/var/cache/ldconfig/aux-cache~",
    ] {
        let root = Root::new();
        fs::create_dir_all(root.join("/var/cache/ldconfig")).unwrap();
        fs::create_dir_all(root.join("/etc/ld.so.conf.d")).unwrap();
        let text = "include /etc/ld.so.conf.d/*.conf\n";
        fs::write(root.join("/etc/ld.so.conf"), text).unwrap();
        let _ = fs::remove_file(root.join(name)); // most are not there
        let mode = nix::sys::stat::Mode::S_IRUSR;
        nix::unistd::mkfifo(&root.join(name), mode).unwrap();
        let before = Tree::of(&root.path).unwrap();
        let refused = Run::default().restoring(&root, || {}).unwrap_err();
        let text = format!("ldconfig would block: {name}: it is a fifo");
        assert_eq!(refused.message(), text);
        let after = Tree::of(&root.path).unwrap();
        assert_eq!(after.changes_since(&before), [""; 0], "{name}");
    }
}

/// Without a limit this takes minutes.
pub(crate) fn a_huge_configuration_is_not_read_to_its_end() {
    let root = Root::new();
    fs::create_dir(root.join("/many")).unwrap();
    for number in 0..5000 {
        fs::write(root.join(&format!("/many/{number}")), "").unwrap();
    }
    let many = "include /many/*a*a*a\n/nowhere/at/all\n".repeat(1500);
    fs::write(root.join("/etc/ld.so.conf"), many).unwrap();
    let start = Instant::now();
    Run::default().restoring(&root, || {}).unwrap();
    assert!(start.elapsed() < Duration::from_secs(45));
}

pub(crate) fn others_links_stay() {
    let root = Root::new();
    let link = root.join(LIBRARY_DIR).join("libother.so");
    let run = Run::default();
    run.restoring(&root, || symlink("/opt/libother.so", &link).unwrap())
        .unwrap();
    assert!(link.is_symlink());
}

pub(crate) fn a_hostile_root_is_only_looked_at() {
    let root = Root::new();
    let conf = root.join("/etc/ld.so.conf");
    fs::remove_file(&conf).unwrap_or_default();
    symlink("/proc/self/root/etc/ld.so.conf", &conf).unwrap();
    fs::remove_dir_all(root.join("/var")).unwrap_or_default();
    symlink("/var", root.join("/var")).unwrap();
    fs::remove_dir_all(root.join("/usr/lib/i386-linux-gnu")).unwrap_or_default();
    symlink(
        "/../../../../../../etc",
        root.join("/usr/lib/i386-linux-gnu"),
    )
    .unwrap();
    let before = Tree::of(&root.path).unwrap();
    Run::default().restoring(&root, || {}).unwrap();
    let after = Tree::of(&root.path).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}
