#![allow(clippy::unwrap_used)]

use super::*;
use crate::elf;
use crate::ldcache::format as ldcache;
use std::os::unix::fs::symlink;

const X64: i32 = 0x303;
const I386: i32 = 3;
const LIB: &str = "/usr/lib/x86_64-linux-gnu";

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for dir in ["etc", &LIB[1..], "usr/lib32", "opt"] {
            std::fs::create_dir_all(tree.0.path().join(dir)).unwrap();
        }
        tree
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::write(HostPath::new(path).below(self.0.path()), content).unwrap();
    }

    fn link(&self, target: &str, path: &str) {
        symlink(target, HostPath::new(path).below(self.0.path())).unwrap();
    }

    fn cache(&self, entries: &[(i32, &str, &str)]) {
        self.file("/etc/ld.so.cache", ldcache::tests::build(entries));
    }

    fn collect(&self, options: DriverOptions, wsl: bool) -> Result<LibraryCandidates> {
        let root = DriverRoot::open(self.0.path()).unwrap();
        LibraryCandidates::collect(&root, None, options, wsl)
    }

    fn select(&self, options: DriverOptions, version: &str) -> [Vec<String>; 2] {
        let files = self.collect(options, false).unwrap().select(version);
        Abi::ALL.map(|abi| {
            let of = files.iter().filter(|file| file.abi == abi);
            of.map(|file| file.path.to_string()).collect()
        })
    }
}

fn paths(files: Vec<DriverFile>, abi: Abi) -> Vec<HostPath> {
    let of = files.into_iter().filter(|file| file.abi == abi);
    of.map(|file| file.path).collect()
}

fn library() -> Vec<u8> {
    elf::tests::build(Some([0, 2, 3, 99]), Some(&["libnvidia-glcore.so.550.1"]))
}

#[test]
fn takes_real_files_of_the_version_in_catalogue_order() {
    let tree = Tree::new();
    tree.file("/usr/lib/x86_64-linux-gnu/libcuda.so.550.1", "");
    tree.link("libcuda.so.550.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1");
    tree.file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.1", "");
    tree.file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", ""); // not versioned
    tree.file("/opt/libcuda.so.535.9", "");
    tree.file("/usr/lib32/libcuda.so.550.1", "");
    tree.cache(&[
        (
            X64,
            "libnvidia-ml.so.1",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.1",
        ),
        (
            X64,
            "libnvidia-ml.so.1",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        ),
        (
            X64,
            "libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        ),
        (X64, "libcuda.so.1", "/opt/libcuda.so.535.9"),
        (I386, "libcuda.so", "/usr/lib32/libcuda.so.550.1"),
        (X64, "libfoo.so", "/opt/libfoo.so.550.1"),
    ]);
    let [native, compat32] = tree.select(DriverOptions::empty(), "550.1");
    let lib = |name: &str| format!("{LIB}/{name}");
    assert_eq!(
        native,
        [lib("libnvidia-ml.so.550.1"), lib("libcuda.so.550.1")]
    );
    assert_eq!(compat32, ["/usr/lib32/libcuda.so.550.1"]);
    let [native, _] = tree.select(DriverOptions::empty(), "535.9");
    assert_eq!(native, ["/opt/libcuda.so.535.9"]);
    // The version must match as a whole.
    assert!(tree.select(DriverOptions::empty(), "50.1")[0].is_empty());
    assert!(tree.select(DriverOptions::empty(), "")[0].is_empty());
}

#[test]
fn later_entries_win() {
    let tree = Tree::new();
    tree.file("/opt/libcuda.so.550.1", "");
    tree.file("/usr/lib32/libcuda.so.550.1", "");
    let first = (X64, "libcuda.so.1", "/usr/lib32/libcuda.so.550.1");
    let second = (X64, "libcuda.so", "/opt/libcuda.so.550.1");
    tree.cache(&[first, second]);
    let [native, _] = tree.select(DriverOptions::empty(), "550.1");
    assert_eq!(native, ["/opt/libcuda.so.550.1"]);
    tree.cache(&[second, first]);
    let [native, _] = tree.select(DriverOptions::empty(), "550.1");
    assert_eq!(native, ["/usr/lib32/libcuda.so.550.1"]);
}

#[test]
fn broken_entries_are_skipped() {
    let tree = Tree::new();
    tree.file("/opt/libcuda.so.550.1", "");
    tree.link("loop", "/opt/loop");
    tree.link("libnvidia-cfg.so.550.1", "/opt/libnvidia-cfg.so.1");
    tree.cache(&[
        (X64, "libcuda.so.1", "/opt/libcuda.so.550.1"),
        (X64, "libcuda.so.1", "/gone/libcuda.so.550.1"),
        (X64, "libnvidia-ml.so.1", "/opt/loop"),
        (X64, "libnvidia-cfg.so.1", "/opt/libnvidia-cfg.so.1"),
    ]);
    let candidates = tree.collect(DriverOptions::empty(), false).unwrap();
    assert_eq!(
        paths(candidates.select("550.1"), Abi::Native),
        [HostPath::new("/opt/libcuda.so.550.1")]
    );
    let Place::Broken(_, link, why) = &candidates.candidates[3].place else {
        panic!("{candidates:?}");
    };
    // The missing library's version is known, so a warning is due.
    assert_eq!(link.as_ref().unwrap().file_name(), "libnvidia-cfg.so.550.1");
    assert_eq!(why, "no such file or directory");
}

#[test]
fn the_thread_variant_must_be_todays() {
    let tree = Tree::new();
    tree.file("/opt/libnvidia-tls.so.550.1", library());
    let entry = (X64, "libnvidia-tls.so.550.1", "/opt/libnvidia-tls.so.550.1");
    tree.cache(&[entry]);
    assert_eq!(tree.select(DriverOptions::empty(), "550.1")[0].len(), 1);
    for content in [
        elf::tests::build(Some([0, 2, 2, 5]), None),
        elf::tests::build(None, None),
        b"text".to_vec(),
    ] {
        tree.file("/opt/libnvidia-tls.so.550.1", content);
        assert!(tree.select(DriverOptions::empty(), "550.1")[0].is_empty());
    }
}

#[test]
fn mesa_is_not_taken_for_legacy_gl() {
    let tree = Tree::new();
    tree.file("/opt/libGL.so.550.1", library());
    tree.file(
        "/opt/libEGL.so.550.1",
        elf::tests::build(None, Some(&["libc.so.6"])),
    );
    tree.cache(&[
        (X64, "libGL.so.1", "/opt/libGL.so.550.1"),
        (X64, "libEGL.so.1", "/opt/libEGL.so.550.1"),
    ]);
    let [native, _] = tree.select(DriverOptions::NO_GLVND, "550.1");
    assert_eq!(native, ["/opt/libGL.so.550.1"]);
    assert!(tree.select(DriverOptions::empty(), "550.1")[0].is_empty());
}

#[test]
fn wsl_keeps_the_first_of_its_own_directory() {
    let tree = Tree::new();
    std::fs::create_dir_all(tree.0.path().join("usr/lib/wsl/lib")).unwrap();
    tree.file("/usr/lib/wsl/lib/libcuda.so.1", "");
    tree.file("/opt/libcuda.so.1", "");
    tree.file("/opt/libdxcore.so", "");
    tree.cache(&[
        (X64, "libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"),
        (X64, "libcuda.so.1", "/opt/libcuda.so.1"),
        (X64, "libdxcore.so", "/opt/libdxcore.so"),
    ]);
    let files = tree.collect(DriverOptions::empty(), true).unwrap();
    let native = paths(files.select(""), Abi::Native);
    let paths = ["/usr/lib/wsl/lib/libcuda.so.1", "/opt/libdxcore.so"];
    assert_eq!(native, paths.map(HostPath::new));
}

#[test]
fn without_a_cache_the_directories_are_searched() {
    let tree = Tree::new();
    let error = tree.collect(DriverOptions::empty(), false).unwrap_err();
    let cache = tree.0.path().join("etc/ld.so.cache");
    let text = format!(
        "open failed: {}: no such file or directory",
        cache.display()
    );
    assert_eq!(error.message(), text);

    tree.link("usr/lib32", "/lib");
    tree.file("/usr/lib32/libcuda.so.550.1", library());
    tree.file("/usr/lib/x86_64-linux-gnu/libcuda.so.550.1", library());
    tree.link("libcuda.so.550.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1");
    tree.file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.1", "not ELF");
    let [native, compat32] = tree.select(DriverOptions::empty(), "550.1");
    assert_eq!(native, [format!("{LIB}/libcuda.so.550.1")]);
    assert!(compat32.is_empty());

    let root = DriverRoot::open(tree.0.path()).unwrap();
    let named = HostPath::new("/etc/ld.so.cache");
    let options = DriverOptions::empty();
    let error = LibraryCandidates::collect(&root, Some(&named), options, false).unwrap_err();
    assert_eq!(error.message(), text);
    tree.file("/etc/ld.so.cache", "root:x:0:0:root:/root:/bin/sh");
    let error = LibraryCandidates::collect(&root, Some(&named), options, false).unwrap_err();
    let text = format!("unsupported file format: {}", cache.display());
    assert_eq!(error.message(), text);
    assert_eq!(check_cache(&root, &named).unwrap_err().message(), text);
}

#[test]
fn falls_back_if_the_cache_lacks_the_driver() {
    let tree = Tree::new();
    tree.cache(&[(X64, "libc.so.6", "/lib/libc.so.6")]);
    assert!(tree.select(DriverOptions::empty(), "550.1")[0].is_empty());
    std::fs::create_dir_all(tree.0.path().join("nix/store/x")).unwrap();
    std::fs::create_dir_all(tree.0.path().join("run/opengl-driver/lib")).unwrap();
    tree.file("/nix/store/x/libcuda.so.550.1", library());
    tree.link(
        "/nix/store/x/libcuda.so.550.1",
        "/run/opengl-driver/lib/libcuda.so.1",
    );
    let [native, _] = tree.select(DriverOptions::empty(), "550.1");
    assert_eq!(native, ["/nix/store/x/libcuda.so.550.1"]);
}

#[test]
fn versions_of_kernel_facing_libraries() {
    let tree = Tree::new();
    for name in [
        "libcuda.so.550.1",
        "libcuda.so.1",
        "libnvidia-ml.so.560.2.1",
        "libnvidia-cfg.so.1.1",
    ] {
        tree.file(&format!("/opt/{name}"), "");
    }
    tree.cache(&[
        (X64, "libcuda.so.1", "/opt/libcuda.so.550.1"),
        (X64, "libcuda.so", "/opt/libcuda.so.1"),
        (X64, "libnvidia-ml.so", "/opt/libnvidia-ml.so.560.2.1"),
        (X64, "libnvidia-cfg.so", "/opt/libnvidia-cfg.so.1.1"),
        (I386, "libcuda.so.1", "/opt/libnvidia-ml.so.560.2.1"),
    ]);
    let candidates = tree.collect(DriverOptions::empty(), false).unwrap();
    assert_eq!(
        candidates.versions().collect::<Vec<_>>(),
        ["550.1", "560.2.1"]
    );
}
