//! Runs ldconfig, and hostile programs in its place, in real sandboxes.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use libnvc::options::Ldconfig;
use libnvc::testing::PreparedLdconfig;
use libnvc::{ContainerPath, Error, ErrorKind};
use nvc_testkit::harness::{self, Need};
use nvc_testkit::helper::Helper;
use nvc_testkit::{files, tests, tree::Tree};

#[path = "ldconfig/bounds.rs"]
mod bounds;
#[cfg(target_arch = "x86_64")]
#[path = "ldconfig/others.rs"]
mod others;
#[path = "ldconfig/sandbox.rs"]
mod sandbox;
#[path = "ldconfig/snapshot.rs"]
mod snapshot;
#[path = "ldconfig/support.rs"]
mod support;

use sandbox::again;
use support::{Root, Run, host_ldconfig, library_directories, prepare, prepared_probe, probe};

fn main() -> ExitCode {
    if let Ok(what) = std::env::var("NVC_TEST_LIFE") {
        return other_lives(&what);
    }
    let mut tests = tests![&[Need::Root];
        the_cache_is_updated,
        the_cache_is_updated_without_pivot_root,
        the_cache_is_updated_on_an_old_kernel,
        a_cache_that_is_a_link_is_replaced,
        an_owner_other_than_root_writes_its_own_files,
        a_read_only_root_is_explained,
        nothing_is_left_mounted,
        callers_may_lack_standard_streams,
        callers_must_not_ignore_children,
        a_missing_program_of_the_image_is_no_failure,
    ];
    use snapshot::*;
    tests.extend(tests![&[Need::Root];
        an_ordinary_root_comes_back,
        redirected_links_come_back,
        a_cache_of_unusual_kind_comes_back,
        notes_come_back,
        directories_of_notes_go,
        others_links_stay,
        obstacles_stay,
        unfinished_files_come_back,
        hard_links_come_back,
        fifos_are_reported,
        a_huge_configuration_is_not_read_to_its_end,
        a_hostile_root_is_only_looked_at,
    ]);
    use bounds::*;
    tests.extend(tests![&[Need::Root];
        large_files_are_not_kept,
        a_file_that_grows_is_not_copied,
        the_kernels_files_are_not_read,
    ]);
    tests.extend(tests![&[Need::Root, Need::Command("python3")];
        leases_are_not_waited_for,
    ]);
    use sandbox::*;
    tests.extend(tests![&[Need::Root, Need::Command("cc")];
        denied_calls,
        view_from_outside,
        the_program_dies_with_its_caller,
        a_replaced_program_is_not_run,
        failures_are_reported,
        time_is_limited,
        output_is_bounded,
        large_files_are_refused,
        programs_that_cannot_run_are_refused,
        the_images_program_runs_in_the_same_sandbox,
    ]);
    #[cfg(target_arch = "x86_64")]
    tests.extend(tests![&[Need::Root, Need::Command("cc")]; calls_of_another_architecture_end_it]);
    tests.extend(
        tests![&[Need::Root, Need::UserNamespaces, Need::Command("cc")];
            all_this_works_in_a_user_namespace,
        containers_may_have_a_user_namespace,
        ],
    );
    // Tests the programs that scripts/test/ldconfigs.sh has fetched, rather than this machine's.
    #[cfg(target_arch = "x86_64")]
    if std::env::var_os(others::LIST).is_some() {
        use others::others_ldconfigs;
        let needs = [Need::Root, Need::Command("strace")];
        tests.extend(tests![&needs; others_ldconfigs]);
    }
    harness::main(tests)
}

/// Names the root for a child run of this program to use, if it is not to create one.
const ROOT: &str = "NVC_TEST_ROOT";

/// Runs this program in another role, when a test starts it again.
fn other_lives(what: &str) -> ExitCode {
    let root = match std::env::var_os(ROOT) {
        Some(path) => Root::at(path.into()),
        None => Root::new(),
    };
    let run = Run::default();
    let result = match what {
        "spin" => run.prepared(&root, &prepared_probe("/spin")),
        "no-streams" => {
            for stream in 0..3 {
                let _ = nix::unistd::close(stream);
            }
            run.host(&root)
        }
        "ignore-children" => match run.host(&root) {
            Err(error) if error.message().ends_with("failed: no child processes") => Ok(()),
            other => panic!("{other:?}"),
        },
        _ => panic!("{what}"),
    };
    match result {
        Ok(()) if what == "ignore-children" || root.has_new_library() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn the_cache_is_updated() {
    let root = Root::new();
    let host = fs::read("/etc/ld.so.cache").unwrap_or_default();
    assert!(!root.has_new_library());
    Run::default().host(&root).unwrap();
    assert!(root.has_new_library(), "{}", root.cached());
    assert_eq!(fs::read("/etc/ld.so.cache").unwrap_or_default(), host);
    let mode = fs::metadata(root.join("/etc/ld.so.cache"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
}

fn the_cache_is_updated_without_pivot_root() {
    let root = Root::new();
    let prepared = prepare(&host_ldconfig(), &library_directories(), true).unwrap();
    for old_kernel in [false, true] {
        let run = Run {
            old_kernel,
            ..Run::default()
        };
        run.prepared(&root, &prepared).unwrap();
        assert!(root.has_new_library());
        fs::remove_file(root.join("/etc/ld.so.cache")).unwrap();
    }
}

fn the_cache_is_updated_on_an_old_kernel() {
    let root = Root::new();
    let run = Run {
        old_kernel: true,
        ..Run::default()
    };
    run.host(&root).unwrap();
    assert!(root.has_new_library());
}

fn a_cache_that_is_a_link_is_replaced() {
    let root = Root::new();
    let cache = root.join("/etc/ld.so.cache");
    fs::remove_file(&cache).unwrap();
    symlink("/../../canary", &cache).unwrap();
    Run::default().host(&root).unwrap();
    assert!(cache.symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read(root.scratch.join("canary")).unwrap(), b"host");
    assert!(root.has_new_library());
}

fn an_owner_other_than_root_writes_its_own_files() {
    let root = Root::new();
    own(&root.path, 1000);
    // As on Red Hat: the owner needs CAP_DAC_OVERRIDE to write here.
    fs::set_permissions(
        root.join(support::LIBRARY_DIR),
        Permissions::from_mode(0o555),
    )
    .unwrap();
    let run = Run {
        owner: 1000,
        ..Run::default()
    };
    run.host(&root).unwrap();
    assert!(root.has_new_library());
    let owner = |path: &str| {
        let metadata = root.join(path).symlink_metadata().unwrap();
        use std::os::unix::fs::MetadataExt;
        (metadata.uid(), metadata.gid())
    };
    assert_eq!(owner("/etc/ld.so.cache"), (1000, 1000));
    assert_eq!(owner("/usr/lib/x86_64-linux-gnu/libnew.so.1"), (1000, 1000));
}

fn own(path: &Path, owner: u32) {
    lchown(path, Some(owner), Some(owner)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            own(&entry.unwrap().path(), owner);
        }
    }
}

fn a_read_only_root_is_explained() {
    let root = Root::new();
    let before = Tree::of(&root.path).unwrap();
    let run = Run {
        read_only: true,
        ..Run::default()
    };
    let error = run.host(&root).unwrap_err();
    // On Ubuntu the program is /sbin/ldconfig.real.
    let program = nvc_testkit::userland::host_ldconfig();
    let text = format!("process {} failed with error code: 1", program.display());
    assert_eq!(error.message(), text, "{error:?}");
    assert_eq!(error.kind(), ErrorKind::LdCache);
    let hint = error.advice().unwrap();
    assert!(hint.contains("the container's root is read-only"), "{hint}");
    run.restoring(&root, || ()).unwrap();
    assert_eq!(
        Tree::of(&root.path).unwrap().changes_since(&before),
        [""; 0]
    );
}

fn nothing_is_left_mounted() {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = Root::new();
    let before = mounts();
    Run::default().host(&root).unwrap();
    assert_eq!(mounts(), before);
}

fn callers_may_lack_standard_streams() {
    assert!(again("no-streams").status().unwrap().success());
}

fn callers_must_not_ignore_children() {
    // Programs in the role of a caller cannot build a root, because that runs programs.
    let root = Root::new();
    let life = again("ignore-children");
    let mut ignoring = Command::new("env");
    ignoring.arg("--ignore-signal=CHLD").arg(life.get_program());
    ignoring.envs(
        life.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    ignoring.env(ROOT, &root.path);
    assert!(ignoring.status().unwrap().success());
}

fn failures_are_reported() {
    let root = Root::new();
    let run = |mode| {
        Run::default()
            .prepared(&root, &prepared_probe(mode))
            .unwrap_err()
    };
    let name = probe().display();
    let error = run("/exit");
    assert_eq!(
        error.message(),
        format!("process {name} failed with error code: 7")
    );
    assert_eq!(
        error.advice().as_deref(),
        Some("ldconfig printed \"last words\"")
    );
    let error = run("/crash");
    assert_eq!(
        error.message(),
        format!("process {name} terminated with signal 11")
    );
    assert_eq!(error.kind(), ErrorKind::LdCache);
}

fn time_is_limited() {
    let root = Root::new();
    // Busy, and blocked.
    for mode in ["/spin", "/wait"] {
        let prepared = prepared_probe(mode).with_deadline(Duration::from_millis(300));
        let error = Run::default().prepared(&root, &prepared).unwrap_err();
        assert!(
            error.message().ends_with("did not end within 0.3 s"),
            "{error:?}"
        );
    }
}

fn output_is_bounded() {
    let root = Root::new();
    // Writes a gigabyte, of which only the bounded part is kept; it must not block.
    let prepared = prepared_probe("/flood").with_deadline(Duration::from_secs(300));
    Run::default().prepared(&root, &prepared).unwrap();
}

fn large_files_are_refused() {
    let root = Root::new();
    let error = Run::default()
        .prepared(&root, &prepared_probe("/large"))
        .unwrap_err();
    assert!(
        error.message().ends_with("failed with error code: 5"),
        "{error:?}"
    );
    assert!(error.advice().unwrap().contains("64 MiB"), "{error:?}");
    assert_eq!(fs::metadata(root.join("/large")).unwrap().len(), 64 << 20);
}

fn programs_that_cannot_run_are_refused() {
    let refused = |path: &str| -> Error {
        let error = prepare(&Ldconfig::Host(path.into()), &[], false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LdCache);
        assert!(error.advice().is_some());
        error
    };
    assert_eq!(
        refused("/sbin/nope").message(),
        "open failed: /sbin/nope: no such file or directory"
    );
    assert_eq!(
        refused("/bin/sh").message(),
        "ldconfig cannot run confined: /bin/sh is dynamically linked"
    );
    assert_eq!(
        refused("/etc/passwd").message(),
        "ldconfig cannot run confined: /etc/passwd is not a program"
    );
}

fn prepared_image(path: &str, mode: &str) -> PreparedLdconfig {
    let program = Ldconfig::Image(ContainerPath::new(path));
    prepare(&program, &[ContainerPath::new(mode)], false).unwrap()
}

fn a_missing_program_of_the_image_is_no_failure() {
    let root = Root::new();
    let before = Tree::of(&root.path).unwrap();
    Run::default()
        .prepared(&root, &prepared_image("/sbin/nope", "/exit"))
        .unwrap();
    assert_eq!(
        Tree::of(&root.path).unwrap().changes_since(&before),
        [""; 0]
    );
}

fn the_images_program_runs_in_the_same_sandbox() {
    let root = Root::new();
    let run = |mode| Run::default().prepared(&root, &prepared_image("/sbin/ldconfig", mode));
    let at = |name: &str| root.join("/usr/sbin").join(name);
    fs::create_dir_all(at("")).unwrap();
    files::copy_program(probe(), &at("ldconfig")).unwrap();
    let message = |mode| run(mode).unwrap_err().message();
    assert_eq!(
        message("/exit"),
        "process /sbin/ldconfig failed with error code: 7"
    );
    run("/report").unwrap();
    let report = fs::read_to_string(root.join("/report")).unwrap();
    assert!(
        report.contains("fork(): 1\n") && report.contains("/canary\", O_RDONLY): 2\n"),
        "{report}"
    );

    // Ubuntu's: a wrapper script beside the program.
    fs::write(at("ldconfig"), "#!/bin/sh\nexit 9\n").unwrap();
    let error = run("/exit").unwrap_err();
    assert_eq!(
        error.message(),
        "ldconfig's sandbox: execution failed: /sbin/ldconfig: no such file or directory"
    );
    assert!(error.advice().unwrap().contains("ldconfig=@PATH"));
    files::copy_program(probe(), &at("ldconfig.real")).unwrap();
    assert_eq!(
        message("/exit"),
        "process /sbin/ldconfig.real failed with error code: 7"
    );

    // Links must not leave the root, and only regular files count.
    fs::remove_file(at("ldconfig.real")).unwrap();
    fs::remove_file(at("ldconfig")).unwrap();
    symlink(
        format!("/../../../../..{}", probe().display()),
        at("ldconfig"),
    )
    .unwrap();
    run("/exit").unwrap();
    fs::remove_file(at("ldconfig")).unwrap();
    fs::create_dir(at("ldconfig")).unwrap();
    assert_eq!(
        message("/exit"),
        "open failed: /sbin/ldconfig: not a regular file"
    );
}

fn all_this_works_in_a_user_namespace() {
    for test in [
        "the_cache_is_updated",
        "the_cache_is_updated_without_pivot_root",
        "the_cache_is_updated_on_an_old_kernel",
        "denied_calls",
        "redirected_links_come_back",
    ] {
        let output = Command::new("unshare")
            .args(["-Urm", "--propagation", "private"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let fine = output.status.success() && text.contains("1 passed");
        assert!(
            fine,
            "{test}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// The caller stays in its user namespace; the container's mounts belong to another one.
fn containers_may_have_a_user_namespace() {
    for old_kernel in [false, true] {
        let root = Root::new();
        let script =
            "mount --bind \"$0\" \"$0\" && mount -t tmpfs x \"$0/sys\" && echo ready && exec cat";
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script]);
        let container = Helper::start(command.arg(&root.path), "ready").unwrap();
        let prepared = prepare(&host_ldconfig(), &library_directories(), false).unwrap();
        let pid = container.id();
        std::thread::scope(|scope| {
            let run = || support::run_in_container(pid, &root, &prepared, old_kernel);
            scope.spawn(run).join().unwrap().unwrap();
        });
        assert!(root.has_new_library());
        container.end().unwrap();
    }
}
