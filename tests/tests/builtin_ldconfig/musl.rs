//! Tests images with musl, which has no cache.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nvc_testkit::container::{Builder, Container};
use nvc_testkit::files;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::Test;
use nvc_testkit::rootfs::{self, Layout};
use nvc_tests::{State, debian_root, start};

use super::{EVERYTHING, automatic, builtin, fallback, listed};

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root];
        musl,
        musl_with_a_list,
        musl_undone,
        both_musl_and_glibc,
    ]
}

/// Installs musl's loader, or a stub for it.
fn alpine() -> rootfs::Builder {
    rootfs::Builder::new(Layout::Alpine).edit(|root| {
        let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
        files::file(&root.join(loader), "", 0o755)
    })
}

fn list_of(container: &Container) -> Option<String> {
    let list = format!("etc/ld-musl-{}.path", std::env::consts::ARCH);
    fs::read_to_string(container.root().join(list)).ok()
}

/// The libraries go to a directory that musl searches anyway.
fn musl() {
    let container = start(Builder::new(alpine()));
    let log = builtin(&container, EVERYTHING);
    assert!(!log.contains("executing"), "{log}");
    assert!(container.inside("/usr/lib/libcuda.so.1").exists());
    assert!(!container.root().join("etc/ld.so.cache").exists());
    assert_eq!(list_of(&container), None);
}

fn musl_with_a_list() {
    let list: &'static str = format!("/etc/ld-musl-{}.path", std::env::consts::ARCH).leak();
    let container = start(Builder::new(alpine().file(list, "/lib:/opt/lib", 0o640)));
    builtin(&container, EVERYTHING);
    assert_eq!(
        list_of(&container).as_deref(),
        Some("/lib:/opt/lib\n/usr/lib\n")
    );
    let metadata = fs::metadata(container.root().join(&list[1..])).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o640);
    builtin(&container, EVERYTHING);
    assert_eq!(
        list_of(&container).as_deref(),
        Some("/lib:/opt/lib\n/usr/lib\n")
    );
    // With compatibility libraries, which come first.
    let container = start(Builder::new(alpine().compat("999.1")));
    builtin(&container, &["--compute", "--cuda-compat-mode=ldconfig"]);
    let expected = "/usr/local/cuda-12.9/compat\n/lib\n/usr/local/lib\n/usr/lib\n";
    assert_eq!(list_of(&container).as_deref(), Some(expected));
}

fn musl_undone() {
    let list: &'static str = format!("/etc/ld-musl-{}.path", std::env::consts::ARCH).leak();
    let obstacle: &'static str = format!("{list}~").leak();
    let container = start(Builder::new(
        alpine().file(list, "/lib", 0o644).directory(obstacle),
    ));
    let before = State::of(&container);
    let message = automatic(&container, EVERYTHING).fails();
    assert!(message.contains(list), "{message}");
    before.assert_unchanged(&container);
}

/// A musl beside the image's glibc serves few programs: only the cache is updated.
fn both_musl_and_glibc() {
    let root = debian_root().no_programs().edit(|root| {
        let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
        files::file(&files::below(root, Path::new(&loader)), "", 0o755)
    });
    let container = start(Builder::new(root));
    let log = builtin(&container, EVERYTHING);
    assert_eq!(fallback(&log), None);
    assert_eq!(list_of(&container), None);
    assert!(
        listed(container.root())
            .iter()
            .any(|line| line.contains("libcuda.so.1 "))
    );
}
