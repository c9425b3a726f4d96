//! Tests where libraries are found.

use super::*;

#[test]
fn usual_directories_come_before_the_cache() {
    let tree = Tree::new();
    tree.libraries(MULTIARCH, &["libcuda"]);
    tree.libraries("/opt", &["libcuda", "libnvidia-ml"]);
    tree.cache(&[
        (X64, "libcuda.so.1", "/opt/libcuda.so.550.1"),
        (X64, "libnvidia-ml.so.1", "/opt/libnvidia-ml.so.550.1"),
    ]);
    let link = "libcuda.so->libcuda.so.1";
    assert_eq!(
        tree.catalogue(),
        [
            "/opt/libnvidia-ml.so.550.1",
            &format!("{MULTIARCH}/libcuda.so.550.1 {link}"),
        ]
    );
    // The caller's directories come first, its cache before the usual directories.
    let named = FileSearch {
        libraries: paths(&["/nowhere", "/opt"]),
        ..request()
    };
    let cached = FileSearch {
        ldcache: Some(HostPath::new("/etc/ld.so.cache")),
        ..request()
    };
    for wanted in [named, cached] {
        let found = tree.requested(&wanted, FileClass::Library);
        assert_eq!(found[1], format!("/opt/libcuda.so.550.1 {link}"));
    }
}

#[test]
fn a_cache_that_does_not_know_the_driver_does_not_matter() {
    for cache in [
        None,
        Some(vec![]),
        Some(b"text".to_vec()),
        Some(format::tests::build(&[])),
    ] {
        let tree = Tree::new();
        tree.libraries("/usr/lib64", &["libnvidia-glcore"]);
        if let Some(bytes) = cache {
            tree.file("/etc/ld.so.cache", bytes);
        }
        assert_eq!(tree.catalogue(), ["/usr/lib64/libnvidia-glcore.so.550.1"]);
    }
    // One of the former driver.
    let tree = Tree::new();
    tree.libraries("/usr/lib64", &["libnvidia-ml"]);
    tree.library("/opt/libnvidia-ml.so.535.9", &object());
    tree.cache(&[(X64, "libnvidia-ml.so.1", "/opt/libnvidia-ml.so.535.9")]);
    assert_eq!(tree.catalogue(), ["/usr/lib64/libnvidia-ml.so.550.1"]);
}

#[test]
fn of_the_caches_entries_the_last_of_the_version_counts() {
    let tree = Tree::new();
    for directory in ["/opt/one", "/opt/two"] {
        tree.libraries(directory, &["libnvidia-ml"]);
    }
    tree.library("/opt/two/libnvidia-ml.so.535.9", &object());
    let one = (X64, "libnvidia-ml.so.1", "/opt/one/libnvidia-ml.so.550.1");
    let two = (X64, "libnvidia-ml.so", "/opt/two/libnvidia-ml.so.550.1");
    let other = (X64, "libnvidia-ml.so.1", "/opt/two/libnvidia-ml.so.535.9");
    tree.cache(&[one, two, other]);
    assert_eq!(tree.catalogue(), ["/opt/two/libnvidia-ml.so.550.1"]);
    tree.cache(&[two, one]);
    assert_eq!(tree.catalogue(), ["/opt/one/libnvidia-ml.so.550.1"]);
    // An entry for another width is not one for this.
    tree.cache(&[(I386, one.1, one.2)]);
    assert!(tree.catalogue().is_empty());
}

#[test]
fn links_lead_to_the_drivers_directory() {
    // Debian's alternatives, whatever the directory's name; without a cache.
    let tree = Tree::new();
    let home = format!("{MULTIARCH}/nvidia/tesla-470");
    tree.libraries(&home, &["libcuda", "libnvidia-glcore"]);
    tree.link("libcuda.so.550.1", &format!("{home}/libcuda.so.1"));
    tree.link(
        &format!("{home}/libcuda.so.1"),
        "/etc/alternatives/glx--libcuda.so.1",
    );
    tree.link(
        "/etc/alternatives/glx--libcuda.so.1",
        &format!("{MULTIARCH}/libcuda.so.1"),
    );
    let of_home = |name: &str| format!("{home}/{name}.so.550.1");
    let found = [
        format!("{} libcuda.so->libcuda.so.1", of_home("libcuda")),
        of_home("libnvidia-glcore"),
    ];
    assert_eq!(tree.catalogue(), found);

    // A cache's entry leads to /opt, also for libraries that it lacks.
    let tree = Tree::new();
    tree.libraries("/opt/nvidia/lib", &["libcuda", "libnvidia-glcore"]);
    tree.link("/opt/nvidia/lib/libcuda.so.550.1", "/srv/libcuda.so.1");
    tree.cache(&[(X64, "libcuda.so.1", "/srv/libcuda.so.1")]);
    assert_eq!(tree.catalogue().len(), 2);
    assert_eq!(tree.all().directories, paths(&["/opt/nvidia/lib"]));
    assert_eq!(version(&tree.root(), &[]).as_deref(), Some(V));

    // A store, linked as a whole or file by file.
    let tree = Tree::new();
    tree.libraries("/nix/store/x/lib", &["libcuda"]);
    tree.link("/nix/store/x/lib", "/run/opengl-driver/lib");
    assert_eq!(
        tree.catalogue()[0],
        "/nix/store/x/lib/libcuda.so.550.1 libcuda.so->libcuda.so.1"
    );
    let tree = Tree::new();
    tree.libraries("/nix/store/x/lib", &["libnvidia-ml", "libnvidia-cfg"]);
    tree.link(
        "/nix/store/x/lib/libnvidia-ml.so.550.1",
        "/run/opengl-driver/lib/libnvidia-ml.so.1",
    );
    assert_eq!(tree.catalogue().len(), 2);
}

#[test]
fn widths_are_kept_apart() {
    // Debian, Fedora, Arch, NixOS.
    for (native, compat32) in [
        (MULTIARCH, "/usr/lib/i386-linux-gnu"),
        ("/usr/lib64", "/usr/lib"),
        ("/usr/lib", "/usr/lib32"),
        ("/run/opengl-driver/lib", "/run/opengl-driver-32/lib"),
    ] {
        let tree = Tree::new();
        tree.libraries(native, &["libnvidia-ml"]);
        tree.library(&format!("{compat32}/libnvidia-ml.so.{V}"), &narrow());
        let found = [
            format!("{native}/libnvidia-ml.so.{V}"),
            format!("{compat32}/libnvidia-ml.so.{V} 32"),
        ];
        assert_eq!(tree.catalogue(), found);
        // In a specification the native one is the last, so that it wins where both have one name.
        let all = tree.all();
        let mut listed = lines(all.of_class(FileClass::Library));
        listed.reverse();
        assert_eq!(listed, found);
        assert_eq!(all.directories, paths(&[native]));
        let no_compat32 = FileSearch {
            no_compat32: true,
            ..FileSearch::new(Contents::All)
        };
        let info = find(&tree.root(), Some(V), &no_compat32).unwrap();
        assert_eq!(lines(info.of_class(FileClass::Library)), found[..1]);
    }
}

#[test]
fn a_cache_named_by_the_caller_must_be_one() {
    let tree = Tree::new();
    let cache = HostPath::new("/etc/ld.so.cache");
    let wanted = FileSearch {
        ldcache: Some(cache.clone()),
        ..request()
    };
    let fails = || {
        let error = find(&tree.root(), Some(V), &wanted).unwrap_err();
        assert_eq!(
            read_cache(&tree.root(), &cache).unwrap_err().message(),
            error.message()
        );
        error
            .message()
            .replace(&*tree.0.path().to_string_lossy(), "")
    };
    assert_eq!(
        fails(),
        "open failed: /etc/ld.so.cache: no such file or directory"
    );
    tree.file("/etc/ld.so.cache", "root:x:0:0:root:/root:/bin/sh");
    assert_eq!(fails(), "unsupported file format: /etc/ld.so.cache");
}

#[test]
fn an_unknown_version_is_that_of_the_libraries() {
    let tree = Tree::new();
    let error = find(&tree.root(), None, &request()).unwrap_err();
    assert!(error.message().contains("version is unknown"), "{error:?}");
    let place = tree.0.path().display().to_string();
    assert!(error.advice().unwrap().contains(&place), "{error:?}");
    // Names, without links.
    tree.library("/usr/lib64/libnvidia-ml.so.535.9", &object());
    assert_eq!(version(&tree.root(), &[]).as_deref(), Some("535.9"));
    // The link leads to the driver that is installed.
    tree.libraries("/usr/lib64", &["libnvidia-ml"]);
    tree.link("libnvidia-ml.so.550.1", "/usr/lib64/libnvidia-ml.so.1");
    let all = FileSearch::new(Contents::All);
    let guessed = find(&tree.root(), None, &all).unwrap();
    assert_eq!(guessed.versions.driver, V);
    assert_eq!(guessed, tree.all());
    assert!(has_library(&tree.root(), "libnvidia-ml.so.1"));
}
