//! Tests that the host's ldconfig and the builtin one have the same effect on equal containers.

use std::os::unix::fs::symlink;
use std::path::Path;

use nvc_testkit::container::Builder;
use nvc_testkit::driver::NATIVE;
use nvc_testkit::elf::SharedObject;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::Test;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{files, machine};
use nvc_tests::{debian_root, start};

use super::{EVERYTHING, agree, builtin, fallback, format_of, ldconfig, listed, native};

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root];
        every_layout,
        everything_in_32_bits_too,
        compatibility_modes,
        the_images_own_driver,
        names_that_are_taken,
        libraries_for_some_processors,
        directories_of_the_configuration,
        many_libraries,
        a_combined_cache,
        the_loader_finds_all,
    ]
}

fn every_layout() {
    for layout in [Layout::Debian, Layout::Rhel, Layout::Arch] {
        let plain = || rootfs::Builder::new(layout);
        let lines = agree(|| plain().no_programs(), |_| (), EVERYTHING);
        assert!(
            lines.iter().any(|line| line.contains("libcuda.so.1 ")),
            "{lines:#?}"
        );
    }
    let split = || debian_root().split_usr();
    agree(split, |_| (), &["--utility", "--device=0"]);
}

fn everything_in_32_bits_too() {
    for layout in [Layout::Debian, Layout::Rhel] {
        let lines = agree(
            || rootfs::Builder::new(layout),
            |_| (),
            &[EVERYTHING, &["--compat32"]].concat(),
        );
        let narrow = lines
            .iter()
            .filter(|line| line.contains("libcuda.so.1 (libc6) => "));
        assert_eq!(
            narrow.count(),
            usize::from(cfg!(target_arch = "x86_64")),
            "{lines:#?}"
        );
    }
}

fn compatibility_modes() {
    for mode in ["mount", "ldconfig", "disabled"] {
        let option = format!("--cuda-compat-mode={mode}");
        // Newer than the driver, with the highest possible name.
        let root = || debian_root().no_programs().compat("999.1");
        let lines = agree(root, |_| (), &["--compute", "--utility", &option]);
        let of_image = lines.iter().any(|line| line.contains("/usr/local/cuda"));
        assert_eq!(of_image, mode == "ldconfig", "{lines:#?}");
    }
}

/// An image built on a machine with a driver of an older or newer version.
fn the_images_own_driver() {
    for version in ["1.2.3", "9999.1"] {
        let edit = |root: &Path| {
            native(root, &format!("/LIB/libcuda.so.{version}"), "libcuda.so.1");
            native(
                root,
                &format!("/LIB/libnvidia-ml.so.{version}"),
                "libnvidia-ml.so.1",
            );
            ldconfig(root, &[]);
        };
        agree(|| debian_root().no_programs(), edit, EVERYTHING);
    }
}

/// A change to a root.
type Edit<'a> = &'a dyn Fn(&Path);

fn names_that_are_taken() {
    let place =
        |root: &Path, name: &str| root.join(machine::driver().fill("LIB").as_str()).join(name);
    let cases: [(&str, Edit<'_>); 6] = [
        ("a file", &|root| {
            native(root, "/LIB/libcuda.so.1", "libcuda.so.1");
        }),
        ("a file of another kind", &|root| {
            files::file(&place(root, "libcuda.so.1"), "text", 0o644).unwrap();
        }),
        ("a link to nothing", &|root| {
            files::directory(&place(root, "")).unwrap();
            symlink("nothing", place(root, "libcuda.so.1")).unwrap();
        }),
        ("a link elsewhere", &|root| {
            native(root, "/opt/libcuda.so.5", "libcuda.so.1");
            files::directory(&place(root, "")).unwrap();
            symlink("/opt/libcuda.so.5", place(root, "libcuda.so.1")).unwrap();
        }),
        ("a link for the link editor", &|root| {
            native(root, "/LIB/libcuda.so.1", "libcuda.so.1");
            symlink("libcuda.so.1", place(root, "libcuda.so")).unwrap();
        }),
        ("a library without a SONAME", &|root| {
            let object = SharedObject::new(NATIVE.1).needed("libc.so.6");
            files::file(&place(root, "libcuda.so.0"), object.bytes(), 0o644).unwrap();
        }),
    ];
    for (case, edit) in cases {
        println!("{case}");
        // The dangling link vanishes in ldconfig's first run; its second must find one.
        let edit = |root: &Path| {
            let link = place(root, "libcuda.so.1");
            native(root, "/LIB/libbase.so.1", "libbase.so.1");
            edit(root);
            let text = link.read_link();
            ldconfig(root, &[]);
            if let (Ok(text), false) = (text, link.is_symlink()) {
                symlink(text, &link).unwrap();
                files::file(&root.join("x"), "", 0o644).unwrap();
                ldconfig(root, &["-X"]);
            }
        };
        agree(|| debian_root().no_programs(), edit, EVERYTHING);
    }
}

fn libraries_for_some_processors() {
    let edit = |root: &Path| {
        for name in ["libfoo.so.1.5", "libbar.so.2.0"] {
            let soname = &name[..name.len() - 2];
            native(root, &format!("/LIB/{name}"), soname);
            for below in [
                "glibc-hwcaps/x86-64-v2",
                "glibc-hwcaps/x86-64-v3",
                "haswell",
            ] {
                native(root, &format!("/LIB/{below}/{name}"), soname);
                native(root, &format!("/opt/more/{below}/{name}"), soname);
            }
        }
        files::file(
            &root.join("etc/ld.so.conf.d/more.conf"),
            "/opt/more\n",
            0o644,
        )
        .unwrap();
        ldconfig(root, &[]);
    };
    let lines = agree(|| debian_root().no_programs(), edit, EVERYTHING);
    assert!(
        lines
            .iter()
            .any(|line| line.contains("hwcap: \"x86-64-v3\"")),
        "{lines:#?}"
    );
}

/// Libraries of one name in several directories; one directory with several names.
fn directories_of_the_configuration() {
    let edit = |root: &Path, directories: &[&str]| {
        let conf = "/opt/first\n/opt/link # and more\n/opt/first/\n/opt/second=libc6\n/nowhere\nrelative\n";
        files::file(&root.join("etc/ld.so.conf.d/0.conf"), conf, 0o644).unwrap();
        for directory in directories {
            native(root, &format!("/{directory}/libfoo.so.1.2"), "libfoo.so.1");
            native(
                root,
                &format!("/{directory}/libcuda.so.1.2"),
                "libcuda.so.1",
            );
        }
        files::link(&root.join("opt/link"), "second").unwrap();
        ldconfig(root, &[]);
    };
    // Of those that this machine's ldconfig searches, and the image's does not, neither is right.
    for (layout, directories) in [
        (
            Layout::Debian,
            &["opt/first", "opt/second", "LIB", "usr/lib", "usr/lib64"][..],
        ),
        (
            Layout::Rhel,
            &["opt/first", "opt/second", "usr/lib", "usr/lib64"],
        ),
    ] {
        agree(
            || rootfs::Builder::new(layout).no_programs(),
            |root| edit(root, directories),
            EVERYTHING,
        );
    }
}

fn many_libraries() {
    let edit = |root: &Path| {
        for number in 0..600 {
            let name = format!(
                "lib{}{number}.so.{}",
                ["a", "nvidia-", "z0", "cuda"][number % 4],
                number % 13
            );
            let at = ["LIB", "usr/lib", "usr/local/lib"][number % 3];
            native(root, &format!("/{at}/{name}.{number}"), &name);
        }
        files::file(
            &root.join("etc/ld.so.conf.d/0.conf"),
            "/usr/local/lib\n",
            0o644,
        )
        .unwrap();
        ldconfig(root, &[]);
    };
    let lines = agree(|| debian_root().no_programs(), edit, EVERYTHING);
    assert!(lines.len() > 600);
}

/// As written by ldconfig before glibc 2.32.
fn a_combined_cache() {
    for extra in [0, 1] {
        let root = || debian_root().no_programs();
        let old = |root: &Path| {
            for number in 0..extra {
                native(
                    root,
                    &format!("/LIB/libodd{number}.so.1"),
                    &format!("libodd{number}.so.1"),
                );
            }
            ldconfig(root, &["-c", "compat"]);
        };
        agree(root, old, EVERYTHING);
        let container = start(Builder::new(root()));
        old(container.root());
        builtin(&container, EVERYTHING);
        assert_eq!(format_of(container.root()), b"ld.so-1.7.0");
        let lines = listed(container.root());
        assert!(
            lines.iter().any(|line| line.contains("libcuda.so.1 ")),
            "{lines:#?}"
        );
        // Again, starting from the written cache.
        let log = builtin(&container, EVERYTHING);
        assert_eq!(fallback(&log), None);
    }
}

/// This machine's loader does not search /usr/lib64 by default, so only the cache helps it.
fn the_loader_finds_all() {
    for form in ["new", "compat"] {
        let container = start(Builder::new(rootfs::Builder::new(Layout::Rhel)));
        ldconfig(container.root(), &["-c", form]);
        let log = builtin(&container, EVERYTHING);
        assert_eq!(fallback(&log), None);
        let lines = listed(container.root());
        let names = lines.iter().filter_map(|line| line.trim().split_once(' '));
        // The loader itself cannot be loaded twice.
        let names: Vec<_> = names
            .map(|(name, _)| name)
            .filter(|name| !name.starts_with("ld-"))
            .collect();
        assert!(names.len() > 30, "{names:?}");
        let loaded = container
            .run(1000, "/usr/bin/env")
            .arg(format!("LD_PRELOAD={}", names.join(":")))
            .args(["cat", "/etc/os-release"])
            .output()
            .unwrap();
        assert!(
            loaded.status.success() && loaded.stderr.is_empty(),
            "{loaded:?}"
        );
        let smi = container
            .run(1000, "/usr/bin/nvidia-smi")
            .arg("-L")
            .output()
            .unwrap();
        assert!(
            smi.status.success() && smi.stdout.starts_with(b"GPU 0"),
            "{smi:?}"
        );
    }
}
