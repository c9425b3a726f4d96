//! `configure --ldconfig=builtin` leaves what `configure` with ldconfig leaves, and the loader finds the libraries.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nvc_testkit::cli::Run;
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::driver::NATIVE;
use nvc_testkit::elf::{Machine, SharedObject};
use nvc_testkit::harness::Need::{Root, UserNamespaces};
use nvc_testkit::helper::Helper;
use nvc_testkit::machine::Scratch;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{files, harness, machine, userland};
use nvc_tests::{State, command_line, configure, debian, debian_root, start};

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Root];
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
        again_changes_nothing,
        another_capability_later,
        other_compatibility_modes_later,
        owned_by_the_containers_owner,
        stale_caches,
        unusable_caches,
        things_in_the_place_of_the_cache,
        a_cache_that_is_a_device_by_turns,
        a_cache_cut_or_garbled,
        hostile_surroundings,
        a_failed_write_undoes_everything,
        a_read_only_root,
        nothing_is_executed,
        plans_say_so,
        a_path_of_that_name,
        musl,
        musl_with_a_list,
        musl_undone,
        both_musl_and_glibc,
    ];
    tests.extend(nvc_testkit::tests![&[Root, UserNamespaces]; in_a_user_namespace]);
    harness::main(tests)
}

const EVERYTHING: &[&str] = &[
    "--utility",
    "--compute",
    "--graphics",
    "--video",
    "--display",
    "--ngx",
    "--device=all",
];

/// Configures a container; gives the log.
#[track_caller]
fn builtin(container: &Container, arguments: &[&str]) -> String {
    let scratch = Scratch::new().unwrap();
    let log = scratch.join("log");
    let arguments = [arguments, &["--ldconfig=builtin"]].concat();
    configure(container, &arguments)
        .env("NVC_DEBUG_FILE", &log)
        .succeeds();
    fs::read_to_string(log).unwrap()
}

/// Whether a log says that the host's ldconfig ran, and why.
fn fallback(log: &str) -> Option<&str> {
    let (_, reason) = log.split_once("not the builtin ldconfig: ")?;
    assert!(log.contains("executing /sbin/ldconfig"), "{log}");
    reason.lines().next()
}

/// What a container's cache lists, in its order.
fn listed(root: &Path) -> Vec<String> {
    let output = Command::new(userland::host_ldconfig())
        .args(["-p", "-C"])
        .arg(root.join("etc/ld.so.cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.contains(" => "));
    lines.map(str::to_owned).collect()
}

/// Asserts that two equal containers become equal with and without ldconfig; gives what the cache lists.
#[track_caller]
fn agree(
    root: impl Fn() -> rootfs::Builder,
    edit: impl Fn(&Path),
    arguments: &[&str],
) -> Vec<String> {
    let outcome = |with: &dyn Fn(&Container)| {
        let container = start(Builder::new(root()));
        edit(container.root());
        let before = State::of(&container);
        with(&container);
        let mut files = before.new_files(&container);
        // ldconfig's notes for its next run.
        files.retain(|line| !line.contains("var/cache/ldconfig"));
        (listed(container.root()), files)
    };
    let expected = outcome(&|container| {
        configure(container, arguments).succeeds();
    });
    let found = outcome(&|container| {
        let log = builtin(container, arguments);
        assert_eq!(fallback(&log), None);
        assert!(log.contains("writing /etc/ld.so.cache"), "{log}");
    });
    let surplus: Vec<_> = found
        .0
        .iter()
        .filter(|line| !expected.0.contains(line))
        .collect();
    let missing: Vec<_> = expected
        .0
        .iter()
        .filter(|line| !found.0.contains(line))
        .collect();
    assert!(
        surplus.is_empty() && missing.is_empty(),
        "+ {surplus:#?} - {missing:#?}"
    );
    assert_eq!(found.0, expected.0, "another order");
    assert_eq!(found.1, expected.1, "files");
    found.0
}

/// The first bytes of a cache.
fn format_of(root: &Path) -> Vec<u8> {
    let mut bytes = fs::read(root.join("etc/ld.so.cache")).unwrap();
    bytes.truncate(11);
    bytes
}

/// A library, with its directory.
fn library(at: &Path, machine: Machine, soname: &str) {
    let object = SharedObject::new(machine)
        .soname(soname)
        .needed("libc.so.6");
    files::file(at, object.bytes(), 0o644).unwrap();
}

fn native(root: &Path, at: &str, soname: &str) {
    let at = machine::driver().fill(at);
    library(&files::below(root, Path::new(&at)), NATIVE.1, soname);
}

/// Runs ldconfig in a root, as whoever made the image did last.
fn ldconfig(root: &Path, arguments: &[&str]) {
    let status = Command::new(userland::host_ldconfig())
        .arg("-r")
        .arg(root)
        .args(arguments)
        .status();
    assert!(status.unwrap().success());
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
        // Newer than the driver, and as new a name as can be.
        let root = || debian_root().no_programs().compat("999.1");
        let lines = agree(root, |_| (), &["--compute", "--utility", &option]);
        let of_image = lines.iter().any(|line| line.contains("/usr/local/cuda"));
        assert_eq!(of_image, mode == "ldconfig", "{lines:#?}");
    }
}

/// An image that was made on a machine with a driver, of an older or a newer version.
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
    let cases: [(&str, Edit<'_>); 7] = [
        ("a file", &|root| {
            native(root, "/LIB/libcuda.so.1", "libcuda.so.1");
        }),
        ("a file of another kind", &|root| {
            files::file(&place(root, "libcuda.so.1"), "text", 0o644).unwrap();
        }),
        ("a directory", &|root| {
            files::directory(&place(root, "libcuda.so.1")).unwrap();
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
        // The dangling link goes with ldconfig's first run; its second must find one.
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

/// Libraries of one name in several directories; the same directory under several names.
fn directories_of_the_configuration() {
    let edit = |root: &Path| {
        let conf = "/opt/first\n/opt/link # and more\n/opt/first/\n/opt/second=libc6\n/nowhere\nrelative\n";
        files::file(&root.join("etc/ld.so.conf.d/0.conf"), conf, 0o644).unwrap();
        for directory in ["opt/first", "opt/second", "LIB", "usr/lib", "usr/lib64"] {
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
    for layout in [Layout::Debian, Layout::Rhel] {
        agree(
            || rootfs::Builder::new(layout).no_programs(),
            edit,
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

/// As ldconfig wrote it before glibc 2.32.
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
        // Again, from what was written.
        let log = builtin(&container, EVERYTHING);
        assert_eq!(fallback(&log), None);
    }
}

/// This machine's loader does not look into /usr/lib64 by itself, so it has the cache alone to go by.
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

fn again_changes_nothing() {
    let container = debian();
    builtin(&container, EVERYTHING);
    let first = State::of(&container);
    // Links for the link editor lead somewhere only now: to ldconfig too they are libraries the second time.
    builtin(&container, EVERYTHING);
    let lines = listed(container.root());
    assert!(
        lines.iter().any(|line| line.contains("\tlibcuda.so ")),
        "{lines:#?}"
    );
    assert_eq!(first.new_files(&container), [""; 0]);
    let second = State::of(&container);
    let log = builtin(&container, EVERYTHING);
    assert!(log.contains("says all this already"), "{log}");
    second.assert_unchanged(&container);
    // As the other.
    configure(&container, EVERYTHING).succeeds();
    assert_eq!(listed(container.root()), lines);
}

fn another_capability_later() {
    let container = debian();
    builtin(&container, &["--utility", "--device=0"]);
    let log = builtin(&container, EVERYTHING);
    assert_eq!(fallback(&log), None);
    let lines = listed(container.root());
    assert!(
        lines.iter().any(|line| line.contains("libcuda.so.1 ")),
        "{lines:#?}"
    );
    configure(&container, &["--utility", "--device=0"]).succeeds();
    let all = |lines: Vec<String>| {
        lines
            .into_iter()
            .filter(|line| !line.contains(".so ("))
            .collect::<Vec<_>>()
    };
    assert_eq!(all(listed(container.root())), all(lines));
}

fn other_compatibility_modes_later() {
    let container = start(Builder::new(debian_root().no_programs().compat("999.1")));
    let in_mode = |mode: &str| {
        builtin(
            &container,
            &["--compute", &format!("--cuda-compat-mode={mode}")],
        )
    };
    in_mode("ldconfig");
    assert!(
        listed(container.root())
            .iter()
            .any(|line| line.contains("/usr/local/cuda"))
    );
    let log = in_mode("disabled");
    assert_eq!(fallback(&log), None);
    assert!(
        !listed(container.root())
            .iter()
            .any(|line| line.contains("/usr/local/cuda"))
    );
}

fn owned_by_the_containers_owner() {
    let container = start(Builder::new(debian_root().no_programs()).owner(1000));
    let log = builtin(&container, EVERYTHING);
    assert_eq!(fallback(&log), None);
    let owner = |path: &str| {
        let metadata = container
            .root()
            .join(machine::driver().fill(path))
            .symlink_metadata()
            .unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
    };
    assert_eq!(owner("etc/ld.so.cache"), (1000, 1000, 0o644));
    assert_eq!(owner("LIB/libcuda.so.1"), (1000, 1000, 0o777));
    assert!(!container.root().join("etc/ld.so.cache~").exists());
}

/// Asserts that the host's ldconfig is used, for this reason, and does its work.
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

/// Makes a file or directory an hour younger or older.
fn touch(path: &Path, hours: &str) {
    let status = Command::new("touch")
        .args(["-h", "-d", hours])
        .arg(path)
        .status();
    assert!(status.unwrap().success());
}

fn stale_caches() {
    let cache = |root: &Path| root.join("etc/ld.so.cache");
    falls_back(
        |root| touch(&root.join("etc/ld.so.conf"), "1 hour"),
        "older than /etc/ld.so.conf",
    );
    falls_back(
        |root| touch(&root.join("etc/ld.so.conf.d"), "1 hour"),
        "older than /etc/ld.so.conf",
    );
    falls_back(
        |root| touch(&root.join("etc/ld.so.conf.d/libraries.conf"), "1 hour"),
        "older than /etc/ld.so.conf",
    );
    let list = |root: &Path| {
        native(root, "/opt/x/libfoo.so.1", "libfoo.so.1");
        native(root, "/LIB/libfoo.so.1", "libfoo.so.1");
        native(
            root,
            "/LIB/glibc-hwcaps/x86-64-v2/libfoo.so.1",
            "libfoo.so.1",
        );
        files::file(&root.join("etc/ld.so.conf.d/x.conf"), "/opt/x\n", 0o644).unwrap();
        ldconfig(root, &[]);
    };
    let touched = |path: &'static str| {
        move |root: &Path| {
            list(root);
            touch(&root.join(machine::driver().fill(path)), "1 hour");
        }
    };
    falls_back(touched("opt/x"), "older than /opt/x");
    falls_back(touched("LIB"), "/etc/ld.so.cache is older than /");
    falls_back(
        touched("LIB/glibc-hwcaps/x86-64-v2"),
        "/glibc-hwcaps/x86-64-v2",
    );
    falls_back(
        |root| {
            list(root);
            fs::remove_dir_all(root.join("opt/x")).unwrap();
        },
        "lists /opt/x, which is not there",
    );
    falls_back(
        |root| {
            native(root, "/opt/x/libfoo.so.1", "libfoo.so.1");
            files::file(&root.join("etc/ld.so.conf.d/x.conf"), "/opt/x\n", 0o644).unwrap();
            touch(&cache(root), "1 hour");
        },
        "lists none of the libraries in /opt/x",
    );
    // Archives have whole seconds: younger by less is as old.
    let container = start(Builder::new(debian_root().no_programs()));
    touch(&cache(container.root()), "2020-01-01 12:00:00");
    for path in [
        "etc/ld.so.conf",
        "etc/ld.so.conf.d",
        "etc/ld.so.conf.d/libraries.conf",
        "usr/lib",
        "usr/lib64",
    ] {
        touch(&container.root().join(path), "2020-01-01 12:00:00.7");
    }
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
    falls_back(
        |root| {
            fs::File::create(place(root))
                .unwrap()
                .set_len(1 << 40)
                .unwrap();
        },
        "too large",
    );
    falls_back(|root| ldconfig(root, &["-c", "old"]), "another format");
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

/// A device is not opened, which can be enough to do harm: this one would say that there is no driver.
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
            // Nothing is mounted, so that all of them look at the same.
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

/// Whatever the bytes are: it works, by one way or the other, and says nothing.
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
    assert!(
        text.contains("run ldconfig  /sbin/ldconfig of the host"),
        "{text}"
    );
    falls_back(
        |root| {
            // The subdirectory is elsewhere, or nowhere if somebody looks for it on the host.
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

fn a_failed_write_undoes_everything() {
    for obstacle in ["directory", "link"] {
        let container = debian();
        // A newer one takes this one's place, so a link is redirected.
        native(container.root(), "/LIB/libcuda.so.1.2", "libcuda.so.1");
        ldconfig(container.root(), &[]);
        let place = container.root().join("etc/ld.so.cache~");
        match obstacle {
            "link" => symlink("nowhere", &place).unwrap(),
            _ => fs::create_dir(&place).unwrap(),
        }
        let before = State::of(&container);
        let message =
            configure(&container, &[EVERYTHING, &["--ldconfig=builtin"]].concat()).fails();
        let text = "nvidia-container-cli: ldcache error: file creation failed: /etc/ld.so.cache: file exists";
        assert_eq!(message, text);
        before.assert_unchanged(&container);
    }
}

/// Prepared by an earlier run: nothing needs to be written. Else the message says what is wrong.
fn a_read_only_root() {
    let container = debian();
    let arguments = &["--utility", "--device=0"];
    builtin(&container, arguments);
    let script = format!("mount -o remount,bind,ro {}", container.root().display());
    assert!(
        container
            .enter("sh")
            .args(["-c", &script])
            .status()
            .unwrap()
            .success()
    );
    builtin(&container, arguments);
    // With ldconfig it fails, since that always writes.
    let message = configure(&container, arguments).fails();
    assert!(message.contains("failed with error code: 1"), "{message}");
}

fn nothing_is_executed() {
    let container = debian();
    let log = builtin(&container, EVERYTHING);
    assert!(!log.contains("executing"), "{log}");
}

/// What `configure --dry-run` prints.
fn dry_run(container: &Container, ldconfig: &str, format: &str) -> String {
    dry_run_line(container, ldconfig, format).succeeds()
}

fn dry_run_line(container: &Container, ldconfig: &str, format: &str) -> Run {
    let ldconfig = format!("--ldconfig={ldconfig}");
    let pid = format!("--pid={}", container.pid());
    let format = format!("--format={format}");
    let words = [
        "configure",
        "--utility",
        "--no-cgroups",
        "--dry-run",
        &ldconfig,
        &pid,
        &format,
    ];
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    Run::cli(line)
}

fn plans_say_so() {
    let container = debian();
    let text = dry_run(&container, "builtin", "text");
    assert!(
        text.contains("update cache  builtin ldconfig, with /usr/lib/"),
        "{text}"
    );
    let json = dry_run(&container, "builtin", "json");
    assert!(json.contains("\"builtin\""), "{json}");
    // What will not be done is not said.
    fs::remove_file(container.root().join("etc/ld.so.cache")).unwrap();
    let text = dry_run(&container, "builtin", "text");
    assert!(
        text.contains("run ldconfig  /sbin/ldconfig of the host"),
        "{text}"
    );
}

fn a_path_of_that_name() {
    let container = debian();
    let message = dry_run(&container, "@builtin", "text");
    assert!(message.contains("builtin ldconfig, with"), "{message}");
    let message = configure(&container, &["--utility", "--ldconfig=@./builtin"]).fails();
    assert!(
        message.contains("open failed: ./builtin: no such file"),
        "{message}"
    );
    let scratch = Scratch::new().unwrap();
    let log = scratch.join("log");
    let run = configure(&container, &["--utility", "--ldconfig=./builtin"]);
    run.env("NVC_DEBUG_FILE", &log).succeeds();
    let log = fs::read_to_string(log).unwrap();
    assert!(
        log.contains("the image has no /builtin") || log.contains("/./builtin"),
        "{log}"
    );
}

/// Musl's loader, or what is in its place.
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

/// Its libraries go where musl looks anyway.
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
    // With compatibility libraries, which go first.
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
    let message = configure(&container, &[EVERYTHING, &["--ldconfig=builtin"]].concat()).fails();
    assert!(message.contains(list), "{message}");
    before.assert_unchanged(&container);
}

/// A musl beside the image's glibc is for a few programs of its own: the cache alone is brought up to date.
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

/// The container's mounts belong to a user namespace of its own.
fn in_a_user_namespace() {
    let scratch = Scratch::new().unwrap();
    let root = debian_root()
        .no_programs()
        .build(scratch.join("root"))
        .unwrap();
    let script = "mount --bind \"$0\" \"$0\" && mount -t tmpfs x \"$0/proc\" && mount -t tmpfs x \"$0/dev\" &&
        mkdir -p \"$0/proc/driver/nvidia\" && echo ready && exec cat";
    let mut command = Command::new("unshare");
    command.args(["-Urm", "--propagation", "private", "sh", "-c", script]);
    let container = Helper::start(command.arg(&root), "ready").unwrap();
    let pid = format!("--pid={}", container.id());
    let mut words = vec!["configure", "--ldconfig=builtin", "--no-cgroups", &pid];
    words.extend(EVERYTHING);
    let log = scratch.join("log");
    let mut line = command_line(machine::driver(), &words);
    line.push(root.clone().into());
    Run::cli(line).env("NVC_DEBUG_FILE", &log).succeeds();
    assert_eq!(fallback(&fs::read_to_string(log).unwrap()), None);
    let lines = listed(&root);
    assert!(
        lines.iter().any(|line| line.contains("libcuda.so.1 ")),
        "{lines:#?}"
    );
    container.end().unwrap();
}
