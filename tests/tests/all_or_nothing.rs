//! Tests that a failing `configure` leaves the container unchanged, whichever step fails.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nvc_testkit::cli::Run;
use nvc_testkit::container::Builder;
use nvc_testkit::driver::{self, Driver};
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self, test};
use nvc_testkit::machine::{self, Scratch};
use nvc_tests::{
    State, command_line, configure, configure_on, debian, debian_root, failing_ldconfig,
    host_ldconfig, start,
};

const EVERYTHING: &[&str] = &[
    "--utility",
    "--compute",
    "--graphics",
    "--display",
    "--device=all",
];

fn main() -> ExitCode {
    // What is broken: sockets of services, the modeset node, a directory of firmware, IMEX channels.
    harness::on_debian();
    // A directory in place of each file in turn, in the order of the steps.
    let named = |path: &str| format!("directory_at{}", path.replace(['/', '.', '-'], "_"));
    let mut tests: Vec<_> = [
        "/LIB/libnvidia-ml.so.VER",
        "/LIB/libnvidia-glvkspirv.so.VER",
    ]
    .into_iter()
    .map(|path| test(named(path), &[Root], move || obstacle(path)))
    .collect();
    // Best-effort mounts.
    let optional = [
        "/usr/bin/nvidia-smi",
        "/usr/lib/firmware/nvidia/VER/gsp_tu10x.bin",
        "/run/nvidia-fabricmanager/socket",
    ];
    tests.extend(optional.map(|path| test(named(path), &[Root], move || goes_on_without(path))));
    tests.extend(nvc_testkit::tests![&[Root];
        a_file_where_a_directory_must_go,
        ldconfig_fails,
        an_interruption_waits,
        ldconfig_cannot_run,
        ldconfig_is_missing,
        a_device_node_is_missing,
        a_device_node_has_another_number,
        a_capability_vanished,
        an_imex_channel_is_missing,
        a_cache_of_another_owner_comes_back,
        a_second_configure_that_fails_keeps_the_first,
        the_containers_writes_are_restored,
    ]);
    harness::main(tests)
}

fn obstacle(path: &str) {
    let path: &'static str = machine::driver().fill(path).leak();
    let container = start(Builder::new(debian_root().no_programs().directory(path)));
    let before = State::of(&container);
    let message = configure(&container, EVERYTHING).fails();
    // The path is named as requested: /lib/… if the image's /lib is a link.
    let end = format!("{}: is a directory", path.trim_start_matches("/usr"));
    let start = "nvidia-container-cli: mount error: ";
    assert!(
        message.starts_with(start) && message.ends_with(&end),
        "{message}"
    );
    before.assert_unchanged(&container);
}

/// The container gets everything else, with a warning.
fn goes_on_without(path: &str) {
    let path: &'static str = machine::driver().fill(path).leak();
    let container = start(Builder::new(debian_root().no_programs().directory(path)));
    let run = configure(&container, EVERYTHING).outcome().unwrap();
    assert_eq!(run.status, Some(0), "{run:?}");
    let end = format!("{}: is a directory\n", path.trim_start_matches("/usr"));
    let start = "nvidia-container-cli: warning: skipped (optional): file creation failed: ";
    assert!(
        run.stderr.starts_with(start) && run.stderr.ends_with(&end),
        "{run:?}"
    );
    let points: Vec<_> = container
        .mounts()
        .unwrap()
        .into_iter()
        .map(|mount| mount.point)
        .collect();
    let has = |place: &str| {
        let place = machine::driver().fill(place);
        points
            .iter()
            .any(|point| point.ends_with(place.trim_start_matches('/')))
    };
    assert!(!has(path), "{points:#?}");
    let others = [
        "/usr/bin/nvidia-debugdump",
        "/LIB/libcuda.so.VER",
        "nvidia/VER/gsp_ga10x.bin",
        "/run/nvidia-persistenced/socket",
        "/dev/nvidia0",
    ];
    assert!(others.into_iter().all(has), "{points:#?}");
}

/// Parents of a mount point that cannot be created are removed; the next mount is made all the same.
fn a_file_where_a_directory_must_go() {
    let builder = debian_root()
        .no_programs()
        .file("/usr/lib/firmware", "no directory", 0o644)
        .file("/etc/nvidia", "no directory", 0o644);
    let container = start(Builder::new(builder));
    let run = configure(&container, EVERYTHING).outcome().unwrap();
    assert_eq!(run.status, Some(0), "{run:?}");
    // As in upstream, the message names the whole path rather than the offending component.
    let warnings: Vec<_> = run.stderr.lines().collect();
    let about = |text: &str| warnings.iter().filter(|line| line.contains(text)).count();
    assert_eq!(warnings.len(), 3, "{run:?}");
    assert_eq!(about(".bin: not a directory"), 2, "{run:?}");
    assert_eq!(
        about("nvidia-application-profiles-rc.d: not a directory"),
        1,
        "{run:?}"
    );
}

fn ldconfig_fails() {
    let (container, scratch) = (debian(), Scratch::new().unwrap());
    let before = State::of(&container);
    let option = failing_ldconfig(&scratch, &[]);
    let message = configure(&container, &[EVERYTHING, &[&option]].concat()).fails();
    let program = option.trim_start_matches("--ldconfig=@");
    let text = format!("ldcache error: process {program} failed with error code: 3");
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
    before.assert_unchanged(&container);
}

/// A supervisor's SIGTERM is blocked until everything is undone.
fn an_interruption_waits() {
    let (container, scratch) = (debian(), Scratch::new().unwrap());
    let before = State::of(&container);
    let pid = format!("--pid={}", container.pid());
    // A slow machine may be interrupted before it has anything to undo.
    let waited = [(0.7, 2), (5.0, 12)].iter().any(|(after, busy)| {
        let busy = [format!("-DBUSY={busy}")];
        let ldconfig = failing_ldconfig(&scratch, &busy);
        let words = ["--no-cgroups", "--utility", "--device=0", &pid, &ldconfig];
        let words = [&["configure"][..], &words].concat();
        let mut line = command_line(machine::driver(), &words);
        line.push(container.root().into());
        let mut timeout = Command::new("timeout");
        timeout.args(["--preserve-status", "--signal=TERM", &after.to_string()]);
        let started = Instant::now();
        let outcome = Run::within(timeout, line).outcome().unwrap();
        assert_eq!(outcome.status, Some(128 + 15), "{outcome:?}");
        before.assert_unchanged(&container);
        started.elapsed() > Duration::from_secs_f64(after + 0.8)
    });
    assert!(waited, "it did not wait");
}

/// Neither can run in the sandbox, for different reasons, which the messages name.
fn ldconfig_cannot_run() {
    let scratch = Scratch::new().unwrap();
    let script = scratch.join("script");
    nvc_testkit::files::file(&script, "#!/bin/sh\nexit 0\n", 0o755).unwrap();
    for program in ["/bin/false", script.to_str().unwrap()] {
        let container = debian();
        let before = State::of(&container);
        let option = format!("--ldconfig=@{program}");
        let message = configure(&container, &[EVERYTHING, &[&option]].concat()).fails();
        let start = "nvidia-container-cli: ldcache error: ";
        assert!(
            message.starts_with(start) && message.contains(program),
            "{message}"
        );
        before.assert_unchanged(&container);
    }
}

fn ldconfig_is_missing() {
    let container = debian();
    let before = State::of(&container);
    let message = configure(
        &container,
        &[EVERYTHING, &["--ldconfig=@/sbin/nope"]].concat(),
    )
    .fails();
    let text = "ldcache error: open failed: /sbin/nope: no such file or directory";
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
    before.assert_unchanged(&container);
}

/// Configures a container on a broken driver root; this must fail and change nothing.
fn on_broken_driver(breaking: impl FnOnce(&Driver), arguments: &[&str]) -> String {
    let scratch = Scratch::new().unwrap();
    let driver = driver::Builder::default().build(scratch.path()).unwrap();
    breaking(&driver);
    let container = debian();
    let before = State::of(&container);
    let message = configure_on(&driver, &container, &[&["--utility"], arguments].concat()).fails();
    before.assert_unchanged(&container);
    message.replace(driver.root().to_str().unwrap(), "DROOT")
}

fn a_device_node_is_missing() {
    let message = on_broken_driver(
        |driver| fs::remove_file(driver.path("/dev/nvidia0")).unwrap(),
        &["--device=0"],
    );
    let text = "mount error: GPU 0: stat failed: DROOT/dev/nvidia0: no such file or directory";
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
}

fn a_device_node_has_another_number() {
    let message = on_broken_driver(
        |driver| {
            fs::remove_file(driver.path("/dev/nvidia0")).unwrap();
            fs::rename(driver.path("/dev/nvidia1"), driver.path("/dev/nvidia0")).unwrap();
        },
        &["--device=0"],
    );
    let text = "mount error: GPU 0: invalid device node: DROOT/dev/nvidia0";
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
}

fn a_capability_vanished() {
    let gone = "/proc/driver/nvidia/capabilities/gpu1/mig/gi1";
    let message = on_broken_driver(
        |driver| fs::remove_dir_all(driver.path(gone)).unwrap(),
        &["--device=1:0"],
    );
    assert!(
        message.starts_with("nvidia-container-cli: mount error: MIG device 1:0: "),
        "{message}"
    );
    assert!(
        message.contains("gpu1/mig/gi1/access: no such file or directory"),
        "{message}"
    );
}

fn an_imex_channel_is_missing() {
    let message = on_broken_driver(|_| {}, &["--device=0", "--imex-channel=0,9"]);
    assert!(
        message.contains("/dev/nvidia-caps-imex-channels/channel9"),
        "{message}"
    );
}

fn a_second_configure_that_fails_keeps_the_first() {
    let container = debian();
    configure(&container, &["--utility", "--device=0"]).succeeds();
    let before = State::of(&container);
    let ldconfig = host_ldconfig();
    let all = [EVERYTHING, &[&ldconfig, "--imex-channel=9"]].concat();
    configure(&container, &all).fails();
    before.assert_unchanged(&container);
}

/// The process and the files belong to different users, as in a container that runs as an unprivileged user.
fn a_cache_of_another_owner_comes_back() {
    let scratch = Scratch::new().unwrap();
    let container = start(Builder::new(debian_root().no_programs()).owner(1000));
    let cache = container.root().join("etc/ld.so.cache");
    std::os::unix::fs::chown(&cache, Some(0), Some(34)).unwrap();
    let before = State::of(&container);
    let option = failing_ldconfig(&scratch, &[]);
    let message = configure(&container, &[EVERYTHING, &[&option]].concat()).fails();
    assert!(message.ends_with("failed with error code: 3"), "{message}");
    before.assert_unchanged(&container);
}

/// The container replaces a file of the first run by one that is not text.
fn the_containers_writes_are_restored() {
    let scratch = Scratch::new().unwrap();
    let container = debian();
    configure(&container, &["--utility", "--device=0"]).succeeds();
    fs::write(
        container.inside("/proc/driver/nvidia/params"),
        b"\xff\0\xfe old",
    )
    .unwrap();
    let before = State::of(&container);
    let option = failing_ldconfig(&scratch, &[]);
    configure(&container, &["--utility", "--device=0", &option]).fails();
    before.assert_unchanged(&container);
}
