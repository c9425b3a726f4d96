//! Lets ldconfig change roots, and compares what they are after putting everything back.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

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
    // An older library of the same name, which the link leads to: ldconfig redirects it.
    root.add_library("libnew.so.0.9", "libnew.so.1");
    let directory = root.join(LIBRARY_DIR);
    symlink("libnew.so.0.9", directory.join("libnew.so.1")).unwrap();
    // One in a directory of ld.so.conf.d, and one in a subdirectory for newer processors.
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
    // Not in a user namespace.
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
    nix::unistd::mkfifo(&conf, nix::sys::stat::Mode::S_IRWXU).unwrap();
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
